"""The command line: what it says and its exit codes. What the commands do is tested elsewhere."""

import os
import subprocess
import sys

import jax
import pytest

import mutarray as mu
from mutarray import cli, doctor


def run(*arguments, **environment):
    """Runs the command line as a process of its own, with the one device that a machine has."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run(
        [sys.executable, "-m", "mutarray", *arguments],
        env=inherited | {"COLUMNS": "200", "NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(autouse=True)
def wide_and_plain(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


def test_help_teaches(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for taught in (
        "keep their sharding",
        "mutarray demo --devices 4",
        "mutarray doctor",
        "Exit codes",
    ):
        assert taught in shown


def test_no_command_shows_the_help(capsys):
    assert cli.main([]) == cli.USAGE
    captured = capsys.readouterr()
    assert "mutarray demo" in captured.out + captured.err


@pytest.mark.parametrize("command", ["demo", "doctor"])
def test_each_command_has_help(command, capsys):
    assert cli.main([command, "--help"]) == 0
    assert "--devices" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mutarray {mu.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["dance"],
        ["--dance"],
        ["demo", "--devices", "0"],
        ["demo", "--devices", "65"],
        ["demo", "--devices", "many"],
        ["demo", "--epochs", "0"],
        ["doctor", "--devices", "-1"],
        ["doctor", "extra"],
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(arguments, capsys):
    assert cli.main(arguments) == cli.USAGE
    said = capsys.readouterr().err
    assert any(argument in said for argument in arguments[-2:])


def test_more_devices_than_a_started_jax_has(capsys):
    there = len(jax.devices())
    assert cli.main(["doctor", "--devices", "64"]) == cli.USAGE
    assert f"already started with {there} devices, 64 were asked for" in capsys.readouterr().out


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(cli, "missing", "typer")
    assert cli.main(["demo"]) == cli.USAGE
    assert capsys.readouterr().err == (
        "mutarray's command line needs typer: pip install 'mutarray[cli]'\n"
    )


def test_it_imports_without_the_extra(tmp_path):
    # A module that fails as a missing one does stands before the real one on the path.
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(name='typer')\n")
    done = run("--version", PYTHONPATH=str(tmp_path))
    assert done.returncode == cli.USAGE
    assert "pip install 'mutarray[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_scikit_learn_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert cli.main(["demo"]) == cli.USAGE
    assert "pip install 'mutarray[demo]'" in capsys.readouterr().out


def test_doctor_as_a_process_simulates_devices():
    done = run("doctor", "--devices", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 3 cpu device(s)" in done.stdout
    for shown in ("mutarray", mu.__version__, "memory kinds", "What works here", "jax.shard_map"):
        assert shown in done.stdout
    assert "fails" not in done.stdout


def test_doctor_is_1_where_what_it_needs_fails(monkeypatch, capsys):
    probes = [
        doctor.Probe("stand on one leg", required=False, reason="OSError: no leg"),
        doctor.Probe("write eagerly", required=True, reason="ValueError: [no] ink"),
    ]
    monkeypatch.setattr(doctor, "probe", lambda devices: probes)
    assert cli.main(["doctor"]) == cli.FAILED
    shown = capsys.readouterr().out
    assert "ValueError: [no] ink" in shown
    monkeypatch.setattr(doctor, "probe", lambda devices: probes[:1])
    assert cli.main(["doctor"]) == 0
