"""The demo: what it promises holds, and it says so when something does not."""

import dataclasses

import jax
import numpy as np
import pytest

import mutarray as mu
from mutarray import cli
from mutarray.demo import devices, digits, report


@pytest.fixture(autouse=True)
def wide_and_plain(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(scope="module")
def data():
    return digits.load()


@pytest.mark.parametrize("wanted", [(4, 2), (2, 2)])
@pytest.mark.parametrize("available", range(1, 10))
def test_mesh_shape_fits_and_divides(available, wanted):
    rows, columns = devices.mesh_shape(available, wanted)
    assert rows * columns <= available
    assert wanted[0] % rows == 0
    assert wanted[1] % columns == 0
    if available >= wanted[0] * wanted[1]:
        assert (rows, columns) == wanted


@pytest.mark.core
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_scenario_holds(count):
    scenario = report.run(jax.devices()[:count])
    assert [check.what for check in scenario.checks if not check.holds] == []
    assert scenario.before == scenario.after
    for device in range(count):
        assert f"CPU {device}" in scenario.picture_before.replace(",", " CPU ")


def test_the_scenario_notices_a_lost_sharding(monkeypatch):
    real = mu.mutable_array

    def on_one_device(x, **options):
        if isinstance(x, jax.core.Tracer):
            return real(x, **options)
        return real(np.asarray(x), **options)

    monkeypatch.setattr(mu, "mutable_array", on_one_device)
    scenario = report.run(jax.devices()[:4])
    assert [check.what for check in scenario.checks if not check.holds] == [
        "the mutable array has the sharding of the array",
        "a write changes the element and leaves the sharding",
    ]


def test_digits_are_all_there(data):
    assert len(data.train_images) + len(data.test_images) == 1797
    assert data.train_images.min() == 0
    assert data.train_images.max() == 1
    assert set(data.test_labels) == set(range(10))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_training_learns_and_keeps_every_sharding(data, count):
    seen = []
    training = digits.train(
        jax.devices()[:count], data, epochs=8, on_step=lambda *step: seen.append(step)
    )
    assert [check.what for check in training.checks if not check.holds] == []
    assert training.mesh.size == count
    assert seen[-1] == (training.steps, training.steps, training.last_loss)
    assert training.last_loss < training.first_loss
    assert len(training.rows) == 13
    # The spec splits a weight over all devices, and each holds its part and no more.
    weight = next(row for row in training.rows if row.name == "layer1")
    assert weight.bytes_per_device == 64 * 128 * 4 // count
    assert len(training.device_bytes) == count


def test_training_on_eight_devices_is_training_on_one(data):
    few = data._replace(
        train_images=data.train_images[: digits.BATCH * 2],
        train_labels=data.train_labels[: digits.BATCH * 2],
    )
    one, eight = (digits.train(jax.devices()[:count], few, epochs=2) for count in (1, 8))
    np.testing.assert_allclose(eight.last_loss, one.last_loss, rtol=1e-4)


def test_the_demo_ends_well(capsys):
    assert cli.main(["demo", "--epochs", "8"]) == 0
    shown = capsys.readouterr().out
    # Both shardings, both pictures, the refusal, and the end of the training.
    assert shown.count("NamedSharding(mesh=Mesh('i': 2, 'j': 2") == 2
    assert shown.count("CPU 3") == 2
    assert "cannot be returned" in shown or "ValueError" in shown
    for wanted in ("data=4 × model=2", "test accuracy is above 95%", "All held."):
        assert wanted in shown
    assert "✗" not in shown


def test_the_demo_fails_where_something_does_not_hold(capsys):
    # The accuracy that is promised takes more than one time through the digits.
    assert cli.main(["demo", "--devices", "4", "--epochs", "1"]) == cli.FAILED
    shown = capsys.readouterr().out
    assert "data=2 × model=2" in shown
    assert "✗ test accuracy is above 95%" in shown
    assert "Something did not hold." in shown


def test_the_demo_fails_where_the_scenario_does_not_hold(monkeypatch, capsys):
    real = report.run

    def refuses_nothing(here):
        scenario = real(here)
        failed = [dataclasses.replace(check, holds=False) for check in scenario.checks[-1:]]
        return dataclasses.replace(scenario, refusal=None, checks=failed)

    monkeypatch.setattr(report, "run", refuses_nothing)
    assert cli.main(["demo", "--devices", "2", "--epochs", "8"]) == cli.FAILED
    assert "(nothing was raised)" in capsys.readouterr().out
