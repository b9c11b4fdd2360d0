"""Mutable arrays under JAX's transformations: jit, AOT, grad, vmap, loops, shard_map, trees."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

import mutarray as mu
from tests.cases.support import on_mesh, same_sharding
from tests.support import KINDS, P, mesh

kinds = pytest.mark.parametrize("kind", KINDS)
runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
X = np.arange(16, dtype=np.float32).reshape(4, 4)


def sharding(kind: str, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh((4, 2), "ij", KINDS[kind]), P(*(spec or ("i", "j"))))


def array(kind: str, *spec: Any) -> mu.MutableArray:
    return mu.mutable_array(jax.device_put(X, sharding(kind, *spec)))


def check(m: mu.MutableArray, wanted: Any, kind: str, *spec: Any) -> None:
    np.testing.assert_array_equal(m[...], wanted)
    assert same_sharding(m, sharding(kind, *spec))


# jit ---------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize(
    "by", ["argument", "closure", "tree", "keyword", "nested", "nested closure"]
)
def test_jit(kind: str, by: str) -> None:
    m, wanted = array(kind), X.copy()

    def step(m: mu.MutableArray, i: Any) -> Any:
        old = m[i]
        m[i] = old * 2
        m[:, 1] = i
        return old

    calls: dict[str, Callable[..., Any]] = {
        "argument": lambda i, f=jax.jit(step): f(m, i),
        "closure": jax.jit(lambda i: step(m, i)),
        "tree": lambda i, f=jax.jit(lambda t, i: step(t["a"][0], i)): f({"a": [m, i]}, i),
        "keyword": lambda i, f=jax.jit(lambda *, w, i: step(w, i)): f(w=m, i=i),
        "nested": lambda i, f=jax.jit(lambda m, i: jax.jit(step)(m, i)): f(m, i),
        "nested closure": jax.jit(lambda i: jax.jit(lambda i: step(m, i))(i)),
    }
    for i in (0, 2, 3):
        np.testing.assert_array_equal(calls[by](i), wanted[i])
        wanted[i] *= 2
        wanted[:, 1] = i
        check(m, wanted, kind)
        m[1, 1] = wanted[1, 1] = 77  # eager work between the calls


@kinds
def test_a_varying_index_does_not_recompile(kind: str) -> None:
    m, traced = array(kind), []

    @jax.jit
    def step(m: mu.MutableArray, i: Any) -> None:
        traced.append(i)
        m[i] = 1.0

    for i in range(4):
        step(m, i)
        m[i, 0] = 2.0
    assert len(traced) == 1
    check(m, np.tile([2.0, 1, 1, 1], (4, 1)), kind)
    other = array(kind)
    step(other, 0)
    assert len(traced) == 1, "nor does another array of the same type"


@kinds
def test_two_arrays_and_what_is_made_inside(kind: str) -> None:
    a, b = array(kind), array(kind, None, "i")

    @jax.jit
    def step(a: mu.MutableArray, b: mu.MutableArray, x: Any) -> Any:
        t = mu.mutable_array(x)
        t[0] = a[1]
        a[2] = t[0]
        mu.addupdate(a, 2, b[0])
        b[...] = a[...].T if kind == "auto" else a[::-1]
        u = mu.zeros_like(b)
        u[1] = t[3]
        return t[...], u[...]

    t, u = step(a, b, jax.device_put(X, sharding(kind)))
    wt, wa, wu = X.copy(), X.copy(), np.zeros_like(X)
    wt[0] = X[1]
    wa[2] = wt[0] + X[0]
    wu[1] = X[3]
    np.testing.assert_array_equal(t, wt)
    np.testing.assert_array_equal(u, wu)
    check(a, wa, kind)
    check(b, wa.T if kind == "auto" else wa[::-1], kind, None, "i")


@kinds
@pytest.mark.parametrize("context", ["its own mesh", "another mesh"])
def test_within_a_mesh_context(kind: str, context: str) -> None:
    """What an array does does not depend on the mesh that happens to be set."""
    m, wanted = array(kind), X.copy()
    other = mesh((2,), "k", KINDS[kind])
    with jax.set_mesh(m.sharding.mesh if context == "its own mesh" else other):
        m[1:3, ::2] = 9.0
        mu.addupdate(m, [0, 3], 1.0)
        m[3, 3] = 8.0
        assert float(m[1, 0]) == 9 and "9.0" not in repr(m)
        np.testing.assert_array_equal(m[::2, 1], [2, 9])
        np.testing.assert_array_equal(mu.swap(m, 0, 4.0), X[0] + 1)
        if context == "its own mesh":
            jax.jit(lambda m, i: m.__setitem__((i, 1), 5.0))(m, 2)
            wanted[2, 1] = 5
        snapshot = m[...]
        m[...] = m[...]
    wanted[1:3, ::2] = 9
    wanted[[0, 3]] += 1
    wanted[3, 3], wanted[0] = 8, 4
    check(m, wanted, kind)
    np.testing.assert_array_equal(snapshot, wanted)


@kinds
def test_donated_and_static_arguments_beside_one(kind: str) -> None:
    m, x = array(kind), jax.device_put(jnp.ones(4), sharding(kind, None))
    step = jax.jit(
        lambda m, x, n: (m.__setitem__(n, x), x * 2)[1], donate_argnums=1, static_argnums=2
    )
    np.testing.assert_array_equal(step(m, x, 2), [2, 2, 2, 2])
    wanted = X.copy()
    wanted[2] = 1
    check(m, wanted, kind)


@kinds
def test_ahead_of_time(kind: str) -> None:
    m = array(kind)
    lowered = jax.jit(lambda m, v: m.__setitem__(slice(1, 3), v)).lower(m, X[0])
    check(m, X, kind)
    compiled = lowered.compile()
    for v in (X[0], X[3]):
        compiled(m, v)
        wanted = X.copy()
        wanted[1:3] = v
        check(m, wanted, kind)


# Gradients ---------------------------------------------------------------------------------------


def loss(x: Any) -> Any:
    m = mu.mutable_array(x)
    m[0] = m[1] * m[2]
    m[:, 3] = 0.0
    m[1:3, 1:3] = m[0:2, 0:2] * 2
    return (m[...] ** 2).sum()


def functional_loss(x: Any) -> Any:
    x = x.at[0].set(x[1] * x[2]).at[:, 3].set(0.0)
    return (x.at[1:3, 1:3].set(x[0:2, 0:2] * 2) ** 2).sum()


@runs
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_gradients_of_what_is_made_inside(kind: str | None, run: Any) -> None:
    plain = jnp.asarray(X) / 4
    wanted, gradient = jax.jit(jax.value_and_grad(functional_loss))(plain)
    x = plain if kind is None else jax.device_put(plain, sharding(kind))
    with on_mesh(x.sharding):
        value, got = run(jax.value_and_grad(loss))(x)
        np.testing.assert_allclose(value, wanted, rtol=1e-6)
        np.testing.assert_allclose(got, gradient, rtol=1e-6)
        value, back = jax.vjp(run(loss), x)
        np.testing.assert_allclose(back(jnp.ones_like(value))[0], gradient, rtol=1e-6)
        tangents = run(lambda x, t: jax.jvp(loss, (x,), (t,)))(x, x)
        np.testing.assert_allclose(tangents[1], (gradient * plain).sum(), rtol=1e-5)


@kinds
def test_a_gradient_step_in_place(kind: str) -> None:
    """Weights are passed in, their values differentiated, and the update written in place."""
    w = array(kind)

    @jax.jit
    def step(w: mu.MutableArray, target: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda v: ((v - target) ** 2).sum())(w[...])
        w[...] -= 0.25 * gradient
        return value

    target = jax.device_put(np.ones_like(X), sharding(kind))
    losses = [float(step(w, target)) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_allclose(w[...], 1 + (X - 1) / 2**4, rtol=1e-6)
    assert same_sharding(w, sharding(kind))


def test_second_derivatives_and_a_loop_under_grad() -> None:
    def power(x: Any) -> Any:
        m = mu.mutable_array(jnp.ones(()))

        def body(i: Any, carry: Any) -> Any:
            m[()] = m[()] * x
            return carry

        lax.scan(lambda c, i: (body(i, c), None), 0, jnp.arange(3))
        return m[()]

    assert float(jax.jit(jax.grad(power))(2.0)) == 12.0

    def square(x: Any) -> Any:
        m = mu.mutable_array(x)
        m[0] = m[0] ** 3
        return m[0]

    assert float(jax.grad(lambda x: jax.grad(square)(x)[0])(jnp.array([2.0]))[0]) == 12.0


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_checkpoint(kind: str | None) -> None:
    plain = jnp.asarray(X) / 4
    wanted = jax.jit(jax.grad(functional_loss))(plain)
    x = plain if kind is None else jax.device_put(plain, sharding(kind))
    with on_mesh(x.sharding):
        got = jax.jit(jax.grad(jax.checkpoint(loss)))(x)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    m = mu.mutable_array(x)
    total = jax.jit(jax.checkpoint(lambda m: m[1].sum()))(m)
    np.testing.assert_allclose(total, plain[1].sum())


# vmap --------------------------------------------------------------------------------------------


def swap_ends(m: mu.MutableArray, v: Any) -> Any:
    old = mu.swap(m, 0, v)
    m[1:3] = m[3] + 1
    return old


@runs
@kinds
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("spec", [("i", "j"), (None, "i")], ids=str)
def test_vmap_over_one_that_is_passed_in(run: Any, kind: str, axis: int, spec: Any) -> None:
    m = array(kind, *spec)
    v = np.arange(50.0, 54.0, dtype=np.float32)
    place = tuple(m.sharding.spec) + (None,) * 2
    v = jax.device_put(v, sharding(kind, place[axis]))  # JAX wants mapped axes split alike
    with on_mesh(m.sharding):
        old = run(jax.vmap(swap_ends, in_axes=(axis, 0)))(m, v)
    wanted = X.copy()
    rows = wanted if axis == 0 else wanted.T  # views, one for each mapped element
    np.testing.assert_array_equal(old, rows[:, 0])
    rows[:, 0] = np.asarray(v)
    rows[:, 1:3] = rows[:, 3:4] + 1
    check(m, wanted, kind, *spec)


@runs
def test_vmap_over_one_that_is_not_square(run: Any) -> None:
    """A wrong order of axes would show as an error, not as a wrong value."""
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    for axis in (0, 1, 2):
        m = mu.mutable_array(x)
        run(jax.vmap(lambda m, v: m.__setitem__(..., m[...] * v), in_axes=(axis, 0)))(
            m, np.arange(x.shape[axis], dtype=np.float32)
        )
        scale = np.arange(x.shape[axis]).reshape([-1 if d == axis else 1 for d in range(3)])
        np.testing.assert_array_equal(m[...], x * scale)
        m = mu.mutable_array(x)
        run(jax.vmap(lambda m: mu.addupdate(m, (0, [1, 1]), 1.0), in_axes=axis))(m)
        wanted = np.moveaxis(x, axis, 0).copy()
        wanted[:, 0, 1] += 2
        np.testing.assert_array_equal(np.moveaxis(np.asarray(m), axis, 0), wanted)


@runs
@kinds
def test_vmap_with_mapped_indices(run: Any, kind: str) -> None:
    m = array(kind, "i")
    i = jax.device_put(np.array([3, 0, 2, 1]), sharding(kind, "i"))
    with on_mesh(m.sharding):
        got = run(jax.vmap(lambda m, i: (m.__setitem__(i, -1.0), m[i - 1])[1]))(m, i)
    wanted = X.copy()
    wanted[np.arange(4), np.asarray(i)] = -1
    check(m, wanted, kind, "i")
    np.testing.assert_array_equal(got, wanted[np.arange(4), np.asarray(i) - 1])


@runs
def test_vmap_of_what_is_made_inside(run: Any) -> None:
    def body(x: Any, i: Any) -> Any:
        m = mu.mutable_array(x)
        m[i] = 0.0
        mu.addupdate(m, [0, 0], 1.0)
        k = mu.zeros(2)
        k[0] = m[i]
        return m[...], k[...]

    got, other = run(jax.vmap(body))(X, jnp.array([1, 3, 0, 2]))
    wanted = X.copy()
    wanted[np.arange(4), [1, 3, 0, 2]] = 0
    wanted[:, 0] += 2
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(other, [[0, 0], [0, 0], [2, 0], [0, 0]])


def test_vmap_of_gradients() -> None:
    batch = jnp.stack([jnp.asarray(X) / 4, jnp.asarray(X) / 8])
    wanted = jax.jit(jax.vmap(jax.grad(functional_loss)))(batch)
    got = jax.jit(jax.vmap(jax.grad(loss)))(batch)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@runs
def test_vmap_of_a_loop(run: Any) -> None:
    def body(m: mu.MutableArray) -> Any:
        return lax.scan(lambda c, i: (c + m[i], m.__setitem__(i, c)), 0.0, jnp.arange(4))[0]

    m = mu.mutable_array(X)
    totals = run(jax.vmap(body))(m)
    np.testing.assert_array_equal(totals, X.sum(axis=1))
    np.testing.assert_array_equal(m[...], np.cumsum(X, axis=1) - X)


# Control flow ------------------------------------------------------------------------------------


def scan(m: mu.MutableArray) -> Any:
    def body(carry: Any, i: Any) -> Any:
        m[i] = m[i] + carry
        return carry + m[i, 0], m[i, 1]

    return lax.scan(body, 0.0, jnp.arange(4))


def fori_loop(m: mu.MutableArray) -> Any:
    def body(i: Any, carry: Any) -> Any:
        m[:, i] = m[:, i - 1] + i
        return carry + m[i, i]

    return lax.fori_loop(1, 4, body, 0.0)


def while_loop(m: mu.MutableArray) -> Any:
    def body(i: Any) -> Any:
        m[i, ::2] = -m[i, ::2]
        return i + 1

    return lax.while_loop(lambda i: i < 3, body, 0)


def while_carrying(m: mu.MutableArray) -> Any:
    def body(carry: Any) -> Any:
        mu.addupdate(m, 0, 1.0)
        return carry[0] + 1, m[0, 0]

    return lax.while_loop(lambda carry: carry[1] < 5, body, (0, m[0, 0]))


def cond(m: mu.MutableArray) -> Any:
    lax.cond(m[0, 0] < m[1, 1], lambda: m.__setitem__(2, 50.0), lambda: None)
    return lax.cond(m[0, 0] > m[1, 1], lambda: m[3], lambda: (m.__setitem__(0, 60.0), m[0])[1])


def switch(m: mu.MutableArray) -> Any:
    branches = [lambda k=k: m.__setitem__(k, 70.0 + k) for k in range(3)]
    return lax.fori_loop(0, 2, lambda i, c: (lax.switch(i + 1, branches), c)[1], 0)


def nested(m: mu.MutableArray) -> Any:
    def outer(i: Any, carry: Any) -> Any:
        def inner(j: Any, carry: Any) -> Any:
            lax.cond(j > i, lambda: m.__setitem__((i, j), 0.0), lambda: None)
            return carry + m[i, j]

        return lax.fori_loop(0, 4, inner, carry)

    return lax.fori_loop(0, 4, outer, 0.0)


def by_numpy(name: str) -> tuple[np.ndarray, Any]:
    x = X.copy()
    if name == "scan":
        carry, seen = 0.0, []
        for i in range(4):
            x[i] += carry
            carry += x[i, 0]
            seen.append(x[i, 1])
        return x, (carry, np.array(seen))
    if name == "fori_loop":
        total = 0.0
        for i in range(1, 4):
            x[:, i] = x[:, i - 1] + i
            total += x[i, i]
        return x, total
    if name == "while_loop":
        x[:3, ::2] *= -1
        return x, 3
    if name == "while_carrying":
        x[0] += 5
        return x, (5, 5.0)
    if name == "cond":
        x[2], x[0] = 50, 60
        return x, x[0]
    if name == "switch":
        x[1], x[2] = 71, 72
        return x, 0
    x[np.triu_indices(4, 1)] = 0
    return x, x.sum()


LOOPS = {f.__name__: f for f in (scan, fori_loop, while_loop, while_carrying, cond, switch, nested)}


HOWS = ("argument of a jit", "closure at top level", "made inside a jit")


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(("how", "kind"), [*((how, "auto") for how in HOWS), (HOWS[0], "explicit")])
def test_control_flow(name: str, how: str, kind: str) -> None:
    loop, (wanted, result) = LOOPS[name], by_numpy(name)
    if how == "made inside a jit":

        def made(x: Any) -> Any:
            m = mu.mutable_array(x)
            got = loop(m)
            return got, m[...]

        got, contents = jax.jit(made)(jax.device_put(X, sharding(kind)))
        np.testing.assert_array_equal(contents, wanted)
    else:
        m = array(kind)
        got = jax.jit(loop)(m) if how == "argument of a jit" else loop(m)
        check(m, wanted, kind)
    jax.tree.map(np.testing.assert_array_equal, got, result)


@kinds
@runs
def test_the_condition_of_a_loop_cannot_read_one(kind: str, run: Any) -> None:
    """JAX would give it the contents from before the loop, and the loop would never end."""

    def loop(m: mu.MutableArray) -> Any:
        def body(i: Any) -> Any:
            mu.addupdate(m, 0, 1.0)
            return i + 1

        return lax.while_loop(lambda i: (m[0, 0] < 5) & (i < 50), body, 0)

    m = array(kind)
    with pytest.raises(mu.errors.TraceError, match="condition of a lax.while_loop.*carry"):
        run(loop)(m)
    with pytest.raises(mu.errors.TraceError, match="condition of a lax.while_loop"):
        jax.jit(lambda x: loop(mu.mutable_array(x)))(X)
    check(m, X, kind)

    def inside(i: Any) -> Any:  # one that the condition makes itself is none of JAX's business
        k = mu.zeros(3)
        k[1] = i
        return k[1] < 4

    assert int(run(lambda: lax.while_loop(inside, lambda i: i + 1, 0))()) == 4


@kinds
def test_made_inside_of_a_body(kind: str) -> None:
    def body(carry: Any, row: Any) -> Any:
        m = mu.mutable_array(carry)
        m[1] = row
        k = mu.zeros(4)
        k[::2] = m[1, ::2]
        return m[...] + 1, k[...]

    x = jax.device_put(X, sharding(kind))
    for run in (lambda f: f, jax.jit):
        with on_mesh(x.sharding):
            carry, out = run(lambda x: lax.scan(body, x, jnp.asarray(X)))(x)
        wanted = X.copy()
        for row in X:
            wanted[1] = row
            wanted += 1
        np.testing.assert_array_equal(carry, wanted)
        np.testing.assert_array_equal(out, X * [1, 0, 1, 0])


# shard_map ---------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize(
    ("how", "run"),
    [("passed in", lambda f: f), ("made inside", lambda f: f), ("passed in", jax.jit)],
    ids=["passed in, eager", "made inside, eager", "passed in, jit"],
)
def test_shard_map(run: Any, kind: str, how: str) -> None:
    s = sharding(kind)

    def work(m: mu.MutableArray) -> None:
        assert m.shape == (1, 2)
        m[0, 0] = m[0, 1] + lax.axis_index("i") * 100
        m[:, ::-1] *= 2

    def passed(m: mu.MutableArray) -> Any:
        work(m)
        return m[...]

    def made(x: Any) -> Any:
        m = mu.mutable_array(x)
        work(m)
        return m[...]

    wanted = X.copy()
    wanted[:, ::2] = (X[:, 1::2] + 100 * np.arange(4)[:, None]) * 2
    wanted[:, 1::2] = X[:, 1::2] * 2
    body = passed if how == "passed in" else made
    mapped = run(jax.shard_map(body, mesh=s.mesh, in_specs=P("i", "j"), out_specs=P("i", "j")))
    with on_mesh(s):
        if how == "passed in":
            m = array(kind)
            np.testing.assert_array_equal(mapped(m), wanted)
            check(m, wanted, kind)
        else:
            np.testing.assert_array_equal(mapped(jax.device_put(X, s)), wanted)


# Trees -------------------------------------------------------------------------------------------


def is_mutable(x: Any) -> bool:
    return isinstance(x, mu.MutableArray)


@kinds
def test_trees(kind: str) -> None:
    tree = {"w": array(kind), "b": [array(kind, "i"), 3]}
    leaves, structure = jax.tree.flatten(tree)
    assert len(leaves) == 3
    again = jax.tree.unflatten(structure, leaves)
    assert again["w"] is tree["w"] and again["b"][0] is tree["b"][0], "the same arrays"
    same = jax.tree.map(lambda x: x, tree)
    assert same["w"] is tree["w"]
    values = jax.tree.map(lambda m: m[...], tree["w"], is_leaf=is_mutable)
    assert isinstance(values, jax.Array)
    shapes = jax.tree.map(lambda m: getattr(m, "shape", None), tree, is_leaf=is_mutable)
    assert shapes == {"w": (4, 4), "b": [(4, 4), None]}
    other = {"w": array(kind), "b": [array(kind, "i"), 4]}
    assert jax.tree.structure(other) == structure and hash(structure) == hash(structure)
    moved = jax.tree.structure({"w": array(kind, "j"), "b": [array(kind, "i"), 4]})
    assert moved != structure, "another sharding is another type"
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    assert paths[0].startswith("['b'][0]") and paths[2].startswith("['w']")


def test_what_a_tree_map_over_the_refs_gives_is_inert() -> None:
    odd = jax.tree.map(lambda ref: 5, {"w": array("auto")})["w"]
    assert is_mutable(odd) and "int" in repr(odd)
    with pytest.raises(mu.errors.NotMutableError, match="tree"):
        odd[0]
    assert jax.tree.leaves(odd) == [5]


@kinds
def test_eval_shape(kind: str) -> None:
    m = array(kind)
    out = jax.eval_shape(lambda m: (m[...] + 1, m[0], m.__setitem__(0, 1.0)), m)
    assert out[0].shape == (4, 4) and out[1].shape == (4,) and out[2] is None
    jaxpr = str(jax.make_jaxpr(lambda m: m.__setitem__(0, 1.0))(m))
    assert "Ref{" in jaxpr
    check(m, X, kind)


@kinds
def test_as_an_argument_of_jax_numpy(kind: str) -> None:
    m = array(kind)
    np.testing.assert_array_equal(jnp.sin(m), jnp.sin(X))
    np.testing.assert_array_equal(jnp.asarray(m), X)
    np.testing.assert_array_equal(jax.jit(jnp.cos)(m[...]), jnp.cos(X))
    np.testing.assert_array_equal(np.sin(np.asarray(m)), np.sin(X))
    assert jnp.asarray(m).sharding == sharding(kind)


# Pictures ----------------------------------------------------------------------------------------


def picture(show: Callable[[], Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show()
        jax.effects_barrier()
    return out.getvalue()


@kinds
def test_visualize(kind: str) -> None:
    m = array(kind)
    show = jax.debug.visualize_array_sharding
    wanted = picture(lambda: show(jax.device_put(X, sharding(kind))))
    assert wanted.count("CPU") == 8
    assert picture(lambda: show(m)) == wanted
    assert picture(lambda: show(m[...])) == wanted
    assert picture(lambda: show(m[::-1])) == wanted
    under_jit = picture(lambda: jax.jit(lambda m: show(m[...]))(m))
    assert under_jit == wanted
    row = picture(lambda: show(m[1]))
    assert row.count("CPU") == 2, "what is left of the sharding after one row is taken"


# Refusals ----------------------------------------------------------------------------------------


@kinds
def test_refusals(kind: str) -> None:
    m, k = array(kind), array(kind)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: jax.jit(lambda m: m)(m), "returned"),
        (lambda: jax.jit(lambda m: {"a": (m[0], m)})(m), "returned"),
        (lambda: jax.jit(lambda: m)(), "returned"),
        (lambda: jax.jit(mu.mutable_array)(X), "returned"),
        (lambda: jax.jit(lambda m: jax.jit(lambda m: m)(m)[0])(m), "returned"),
        (lambda: jax.eval_shape(lambda m: m, m), "returned"),
        (lambda: lax.scan(lambda c, i: (c, None), m, jnp.arange(2)), "mutable"),
        (lambda: lax.cond(True, lambda: m, lambda: k), "mutable"),
        (lambda: jax.jit(lambda a, b: None)(m, m), "only one reference"),
        (lambda: jax.jit(lambda t: None)([m, {"k": m}]), "only one reference"),
        (lambda: jax.jit(lambda a: m[0] + a[0])(m), "closed over"),
        (lambda: jax.jit(lambda a: jax.jit(lambda b: m[0] + b[0])(a))(m), "closed over"),
    ]
    for call, why in calls:
        with pytest.raises(ValueError, match=why) as caught:
            call()
        assert "mutable array" in str(caught.value)
    check(m, X, kind)
    check(k, X, kind)


@kinds
def test_after_a_refusal_or_a_failure_midway_all_goes_on(kind: str) -> None:
    m = array(kind)

    def fails(m: mu.MutableArray) -> None:
        m[0] = 5.0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jax.jit(fails)(m)
    check(m, X, kind)
    with pytest.raises(IndexError):
        jax.jit(lambda m: (m.__setitem__(0, 1.0), m[7]))(m)
    check(m, X, kind)
    jax.jit(lambda m: m.__setitem__(0, 1.0))(m)
    wanted = X.copy()
    wanted[0] = 1
    check(m, wanted, kind)
