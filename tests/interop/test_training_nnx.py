"""flax NNX: a model and its optimizer are one mutable state, and a step works on their values."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import mutarray as mu
from tests.interop import training


class Net(nnx.Module):
    def __init__(self, rngs):
        n = training.SIZE
        self.one = nnx.Linear(n, n, rngs=rngs)
        self.norm = nnx.BatchNorm(n, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.two = nnx.Linear(n, n, rngs=rngs)

    def __call__(self, x):
        return self.two(self.dropout(nnx.relu(self.norm(self.one(x)))))


def error(net, x, y):
    return jnp.mean((net(x) - y) ** 2)


def _made():
    net = Net(nnx.Rngs(0))
    return nnx.split((net, nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)))


def test_a_step_is_the_functional_one_without_a_second_copy():
    graph, start = _made()

    def train(values, x, y):
        net, optimizer = nnx.merge(graph, values)
        loss, gradients = nnx.value_and_grad(error)(net, x, y)
        optimizer.update(net, gradients)
        return nnx.state((net, optimizer)), loss

    @mu.jit
    def step(state, x, y):
        new, loss = train(mu.values(state), x, y)
        mu.assign(state, new)
        return loss

    training.check(step, train, start)


def test_statistics_keys_and_counters_are_in_the_state():
    graph, start = _made()
    state = mu.mutable(training.place(start))
    before = mu.values(state)

    @mu.jit
    def look(state, x):
        net, optimizer = nnx.merge(graph, mu.values(state))
        net(x)
        mu.assign(state, nnx.state((net, optimizer)))

    look(state, training.batch()[0])
    after = mu.values(state)
    assert (after[0].norm.mean[...] != before[0].norm.mean[...]).any()
    assert after[0].dropout.rngs["count"][...] == before[0].dropout.rngs["count"][...] + 1
    assert (after[0].one.kernel[...] == before[0].one.kernel[...]).all()


def test_a_model_is_put_together_from_a_frozen_state():
    graph, start = _made()
    x, _ = training.batch()
    net, _ = nnx.merge(graph, start)
    net.eval()
    want = net(x)
    again, _ = nnx.merge(graph, mu.freeze(mu.mutable(training.place(start))))
    again.eval()
    assert jnp.allclose(again(x), want, rtol=1e-4, atol=1e-5)


def test_a_subset_of_a_state_is_mutable_and_the_rest_is_not():
    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    params = mu.mutable(training.place(params))

    @mu.jit
    def step(params, rest, x, y):
        def loss(values):
            net = nnx.merge(graph, values, rest)
            net.eval()
            return error(net, x, y)

        value, gradients = jax.value_and_grad(loss)(mu.values(params))
        mu.map_inplace(lambda w, g: w - 0.1 * g, params, gradients)
        return value

    losses = [float(step(params, rest, *training.batch())) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
