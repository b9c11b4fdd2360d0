"""The digits trainer: both forms train alike, in place, and the program runs."""

import jax
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import mutarray as mu
from examples import digits
from examples.comparison import peak_bytes
from mutarray.demo.devices import make_mesh
from mutarray.demo.digits import SPECS, batches, init, load
from tests import hlo


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(jax.devices(), (4, 2), ("data", "model"))


@pytest.fixture(scope="module")
def data(mesh):
    return list(batches(digits.few(load()), mesh, 2))


def test_both_forms_train_alike_and_keep_every_sharding(mesh, data):
    state, losses = digits.train(mesh, data)
    functional, others = digits.train_functional(mesh, data)
    np.testing.assert_allclose(losses, others, rtol=1e-5)
    assert losses[-1] < losses[0]
    assert int(state.steps[...]) == int(functional.steps) == len(data)
    one, other = jax.tree.leaves(mu.values(state)), jax.tree.leaves(functional)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
        assert x.sharding == y.sharding
    for name, spec in SPECS.items():
        assert state.weights[name].sharding.spec == spec
        assert state.second_moment[name].sharding.spec == spec


def test_every_array_of_the_state_is_one_of_its_own(mesh):
    state = mu.mutable(init(mesh))
    arrays = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, mu.MutableArray))
    assert len(arrays) == len({id(m) for m in arrays}) == 13


def test_a_step_needs_no_second_copy_of_the_state(mesh, data):
    mine, plain = digits.forms(mesh, data[0])
    state = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(init(mesh)))
    assert hlo.aliased(mine.compiled) == state
    assert peak_bytes(mine.compiled) <= peak_bytes(plain.compiled)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = typer.Typer()
    app.command()(digits.main)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_the_program_runs(run):
    result = run("--small")
    assert result.exit_code == 0, result.output
    assert "plain JAX, donated" in result.output and "test accuracy" in result.output


def test_more_devices_than_there_are_is_wrong_usage(run):
    result = run("--small", "--devices", "64")
    assert result.exit_code == 2
    assert "JAX has 8 devices, 64 were asked for" in result.output
