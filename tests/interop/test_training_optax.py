"""optax: parameters and optimizer state are updated in place by one program."""

import jax
import jax.numpy as jnp
import optax
import pytest

import mutarray as mu
from tests.interop import training

OPTIMIZERS = {
    "adamw": lambda: optax.adamw(1e-2),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "chain": lambda: optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.lion(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)),
    ),
    "every second": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
}


def error(params, x, y):
    hidden = jax.nn.relu(x @ params["one"] + params["bias"])
    return jnp.mean((hidden @ params["two"] - y) ** 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_the_functional_one_without_a_second_copy(name):
    optimizer = OPTIMIZERS[name]()
    n = training.SIZE
    one, two = jax.random.normal(jax.random.key(0), (2, n, n)) / 8
    params = training.place({"one": one, "bias": jnp.zeros(n), "two": two})

    @mu.jit
    def step(state, x, y):
        params, memory = state
        now = mu.values(params)
        loss, gradients = jax.value_and_grad(error)(now, x, y)
        updates, new = optimizer.update(gradients, mu.values(memory), now)
        mu.assign(memory, new)
        mu.map_inplace(jnp.add, params, updates)
        return loss

    def functional(state, x, y):
        params, memory = state
        loss, gradients = jax.value_and_grad(error)(params, x, y)
        updates, memory = optimizer.update(gradients, memory, params)
        return (optax.apply_updates(params, updates), memory), loss

    training.check(step, functional, (params, optimizer.init(params)), steps=6)


def test_apply_updates_works_on_values():
    params = mu.mutable(training.place({"w": jnp.ones(8)}))
    mu.assign(params, optax.apply_updates(mu.values(params), {"w": jnp.arange(8.0)}))
    assert params["w"][...].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_state_is_made_on_the_values_of_mutable_parameters():
    params = mu.mutable(training.place({"w": jnp.ones((8, 8))}))
    memory = mu.mutable(optax.adam(1e-2).init(mu.values(params)))
    assert memory[0].mu["w"].sharding == params["w"].sharding
    assert memory[0].count.sharding.mesh == params["w"].sharding.mesh
