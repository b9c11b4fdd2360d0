"""equinox: a module's arrays are mutable, and what is no array is kept apart, as for jax.jit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import mutarray as mu
from tests.interop import training


def test_a_step_is_the_functional_one_without_a_second_copy():
    n = training.SIZE
    model = eqx.nn.MLP(n, n, n, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    params = training.place(params)
    optimizer = optax.adam(1e-2)

    def error(params, x, y):
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    @mu.jit
    def step(state, x, y):
        params, memory = state
        now = mu.values(params)
        loss, gradients = jax.value_and_grad(error)(now, x, y)
        updates, new = optimizer.update(gradients, mu.values(memory))
        mu.assign(memory, new)
        mu.map_inplace(jnp.add, params, updates)
        return loss

    def functional(state, x, y):
        params, memory = state
        loss, gradients = jax.value_and_grad(error)(params, x, y)
        updates, memory = optimizer.update(gradients, memory)
        return (eqx.apply_updates(params, updates), memory), loss

    training.check(step, functional, (params, optimizer.init(params)))


class Counter(eqx.Module):
    """A layer that counts: with mutable arrays it needs no `eqx.nn.State`."""

    weight: mu.MutableArray | jax.Array
    calls: mu.MutableArray | jax.Array
    name: str = eqx.field(static=True)

    def __call__(self, x):
        self.calls[...] += 1
        return x @ self.weight


def test_a_module_may_change_its_own_arrays():
    weight, calls = training.place((jnp.eye(8), jnp.array(0)))
    model = mu.mutable(Counter(weight, calls, "counter"))
    call = mu.jit(lambda model, x: model(x))
    for _ in range(3):
        out = call(model, jnp.arange(8.0))
    assert out.tolist() == list(range(8)) and model.calls[...] == 3 and model.name == "counter"


def test_a_partition_may_be_made_mutable_and_put_together_again():
    model = eqx.nn.MLP(8, 8, 8, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    x = jnp.arange(8.0)
    # Leaves of the first tree decide, and where that has None it takes whole mutable arrays.
    whole = eqx.combine(static, mu.mutable(params))
    assert isinstance(whole.layers[0].weight, mu.MutableArray)
    assert jnp.allclose(whole(x), model(x))
    whole.layers[0].weight[...] = 0.0
    assert not jnp.allclose(whole(x), model(x))
