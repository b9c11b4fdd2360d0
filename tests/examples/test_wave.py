"""The wave solver: right by NumPy and by the conservation of energy, and it moves only borders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from typer.testing import CliRunner

import mutarray as mu
from examples import wave
from tests import hlo

CELLS = 64


@pytest.fixture(scope="module")
def sharding():
    return NamedSharding(wave.make_mesh(jax.devices()), P("i", "j"))


def numpy_updates(fields, count):
    """Yee's scheme as a textbook has it: the magnetic fields lie between the cells."""
    e, keep, drive = (np.asarray(x, np.float64) for x in (fields.e, fields.keep, fields.drive))
    hx = np.zeros((CELLS, CELLS - 1))
    hy = np.zeros((CELLS - 1, CELLS))
    source = wave.sources(CELLS)
    for n in range(count):
        hx -= wave.COURANT * (e[:, 1:] - e[:, :-1])
        hy += wave.COURANT * (e[1:, :] - e[:-1, :])
        inside = np.s_[1:-1, 1:-1]
        curl = hy[1:, 1:-1] - hy[:-1, 1:-1] - hx[1:-1, 1:] + hx[1:-1, :-1]
        e[inside] = keep[inside] * e[inside] + drive[inside] * curl
        line, antenna = wave.currents(jnp.int32(n))
        e[source.line] += line
        e[source.antenna] += antenna
    return e, hx, hy


def test_the_fields_are_those_of_a_numpy_solver_and_of_plain_jax(sharding):
    fields = wave.double_slit(CELLS, sharding)
    expected = numpy_updates(fields, 90)
    plain, materials = wave.to_plain(wave.double_slit(CELLS, sharding))
    plain_step = wave.plain_advance(sharding)
    for first, count in [(0, 50), (50, 40)]:
        wave.advance(fields, first, count)
        fields.e.block_until_ready()
        plain = jax.block_until_ready(plain_step(plain, materials, first, count))

    assert np.abs(expected[0]).max() > 0.2
    for ours, theirs in zip(fields, [*plain, *materials], strict=True):
        np.testing.assert_allclose(ours[...], theirs, atol=1e-6)
        assert ours.sharding == sharding and theirs.sharding == sharding
    np.testing.assert_allclose(fields.e[...], expected[0], atol=1e-5)
    np.testing.assert_allclose(fields.hx[:, :-1], expected[1], atol=1e-5)
    np.testing.assert_allclose(fields.hy[:-1], expected[2], atol=1e-5)
    assert not np.asarray(fields.hx[:, -1]).any() and not np.asarray(fields.hy[-1]).any()


def test_a_closed_cavity_keeps_its_energy(sharding):
    fields = wave.cavity(CELLS, sharding)
    fields.drive[20:40, 10:50] = wave.COURANT / 4  # glass
    fields.e[10:30, 30] = np.hanning(20)  # a pulse across shards
    fields.e[40, 20] += 1.0
    permittivity = wave.COURANT / np.asarray(fields.drive)[1:-1, 1:-1]
    update = mu.jit(wave.update)

    def energies(rounds):
        for _ in range(rounds):
            before = [np.asarray(x, np.float64) for x in mu.values(fields)]
            update(fields)
            hx, hy = np.asarray(fields.hx, np.float64), np.asarray(fields.hy, np.float64)
            # The magnetic field is half an update ahead: the product of both sides of the time of
            # the electric field is what the scheme keeps.
            electric = (permittivity * before[0][1:-1, 1:-1] ** 2).sum()
            yield electric, electric + (before[1] * hx + before[2] * hy).sum()

    electric, total = np.array(list(energies(60))).T
    np.testing.assert_allclose(total, total[0], rtol=1e-5)
    assert electric.min() < 0.8 * electric.max()  # it goes to and fro


def test_the_scene_is_what_numpy_would_have_drawn(sharding):
    keep, drive = (np.asarray(x) for x in wave.double_slit(CELLS, sharding)[3:])
    wall = CELLS // 3
    open_cells = np.flatnonzero(drive[wall + 1])
    assert (drive[wall : wall + 3] == drive[wall]).all()
    assert len(open_cells) == 2 * (2 * (CELLS // 40) + 2)
    assert not drive[[0, -1]].any() and not drive[:, [0, -1]].any()
    assert drive[2 * CELLS // 3, CELLS // 2] == np.float32(wave.COURANT / wave.GLASS)
    depth = round(wave.BORDER * CELLS)
    inside = keep[depth:-depth, depth:-depth]
    assert keep[0, 0] < keep[1, 1] < keep[depth - 1, CELLS // 2] < 1
    bar = np.s_[3 * CELLS // 4 : -CELLS // 8, -CELLS // 4 : -CELLS // 6]
    assert (keep[bar] < 1).all() and (inside < 1).sum() == keep[bar].size


def test_devices_send_nothing_but_the_cells_next_to_their_borders(sharding):
    cells = 256
    fields = wave.cavity(cells, sharding)
    with mu.no_gather():
        compiled = wave.advance.lower(fields, 0, 4).compile()
    rows, columns = sharding.shard_shape((cells, cells))
    sent = hlo.collectives(compiled)
    assert {i.name for i in sent} == {"collective-permute"}
    assert sum(i.nbytes for i in sent) == 3 * 4 * (rows + columns)
    assert [i for i in hlo.copies(compiled) if i.nbytes >= rows * columns * 4] == []
    assert hlo.aliased(compiled) == 3 * 4 * rows * columns
    for field in fields:
        assert {shard.data.shape for shard in field.addressable_shards} == {(rows, columns)}


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_the_mesh_takes_any_number_of_devices(count):
    mesh = wave.make_mesh(jax.devices()[:count])
    assert list(mesh.devices.flat) == jax.devices()[:count]
    rows, columns = mesh.devices.shape
    assert rows >= columns >= count // rows


def test_the_command_line(tmp_path):
    image = tmp_path / "wave.png"
    result = CliRunner().invoke(wave.app, ["--small", "--plot", str(image)])
    assert result.exit_code == 0, result.output
    assert image.read_bytes().startswith(b"\x89PNG")
    assert "8 devices" in result.output and "█" in result.output
    assert "mutarray" in result.output and "plain JAX" in result.output


def test_a_grid_that_does_not_split_is_refused():
    result = CliRunner().invoke(wave.app, ["--cells", "63"])
    assert result.exit_code == 2
    assert "63" in result.output
