"""Two processes with two devices each: no process sees all shards."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import sys
    import jax
    port, rank = sys.argv[1], int(sys.argv[2])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, rank)
    import numpy as np
    import mutarray as mu
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
    s = NamedSharding(mesh, P("d"))
    m = mu.zeros((8, 3), sharding=s)
    assert len(m.addressable_shards) == 2, m.addressable_shards
    text = repr(m)
    assert "float32[8, 3]" in text and "'d'" in text and "?" in text, text
    rows = m.layout().rows
    assert [row.process for row in rows] == [0, 0, 1, 1], rows
    assert [row.box[0] for row in rows] == [(0, 2), (2, 4), (4, 6), (6, 8)], rows
    if rank == 0:  # alone: to show an array takes no other process
        m.visualize()
        m._repr_html_()
    m[5] = 1.0
    m[1:6] = 2.0
    rows = np.concatenate([np.asarray(b.data)[:, 0] for b in m.addressable_shards])
    assert rows.tolist() == {0: [0, 2, 2, 2], 1: [2, 2, 0, 0]}[rank], rows
    assert sum(b.data.nbytes for b in m.addressable_shards) == 48
    assert np.asarray(m[4]).tolist() == [2, 2, 2]
    jax.jit(lambda m: m.__setitem__(0, 7.0))(m)
    assert np.asarray(m[0]).tolist() == [7, 7, 7]
    assert m.sharding is s and m[...].sharding == s
    c = mu.from_callback((8, 3), s, lambda index: np.arange(24.0).reshape(8, 3)[index])
    assert np.asarray(c[6]).tolist() == [18, 19, 20]
    def blocks(m):
        return [(b.index, np.asarray(b.data).tolist()) for b in m.addressable_shards]

    x = np.arange(24.0).reshape(8, 3)
    backwards = Mesh(np.array(jax.devices()[::-1]), ("d",), axis_types=(AxisType.Auto,))
    square = np.array(jax.devices()).reshape(2, 2)
    square = Mesh(square, ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    for target in (
        NamedSharding(mesh, P()),
        NamedSharding(square, P("j")),
        NamedSharding(backwards, P("d")),
        s,
    ):
        c.reshard(target)
        assert c.sharding is target
        c[2] = x[2] = 7.0
        assert blocks(c) == [(index, x[index].tolist()) for index, _ in blocks(c)]
        assert len(c.addressable_shards) == 2, c.addressable_shards
    def step(m, v):
        m[0] = v
        return m, mu.mutable_array(m[...] * 2, sharding=s)

    same, new = mu.jit(step)(m, 8.0)
    assert same is m and new.sharding == s and np.asarray(new[0]).tolist() == [16, 16, 16]
    try:
        with mu.transaction(m, new):
            m[0] = 1.0
            new += 1
            raise InterruptedError
    except InterruptedError:
        assert np.asarray(m[0]).tolist() == [8, 8, 8] and np.asarray(new[0]).tolist() == [16] * 3
    mu.assign({"m": m}, {"m": np.arange(24.0).reshape(8, 3)})
    assert np.asarray(m[7]).tolist() == [21, 22, 23]
    print("done", rank)
    """
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


@pytest.mark.core
def test_two_processes() -> None:
    port = str(free_port())
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, port, str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, process in enumerate(running):
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, err
            assert f"done {rank}" in out
            assert out.count("CPU ") == (4 if rank == 0 else 0), out
    finally:
        for process in running:
            process.kill()
