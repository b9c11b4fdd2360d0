"""The doctor: it finds what is there, tries it, and says why something does not work."""

import jax
import numpy as np
import pytest

import mutarray as mu
from mutarray import doctor


def test_versions_name_what_is_there_and_what_is_not(monkeypatch):
    monkeypatch.setattr(doctor, "OPTIONAL_PACKAGES", ("no-such-package-anywhere",))
    found = doctor.versions()
    assert found["mutarray"] == mu.__version__
    assert found["jax"] == jax.__version__
    assert found["numpy"] == np.__version__
    assert found["no-such-package-anywhere"] is None


def test_a_device_names_its_default_memory_first():
    device = jax.devices()[0]
    described = doctor.describe(device)
    assert described.memory_kinds[0] == device.default_memory().kind
    assert set(described.memory_kinds) == {m.kind for m in device.addressable_memories()}
    assert len(set(described.memory_kinds)) == len(described.memory_kinds)


def test_memory_is_reported_where_the_backend_counts_it():
    class Counting:
        device_kind = "counts"

        def memory_stats(self):
            return {"bytes_in_use": 3, "bytes_limit": 5}

        def default_memory(self):
            return jax.devices()[0].default_memory()

        def addressable_memories(self):
            return [self.default_memory()]

    described = doctor.describe(Counting())
    assert (described.bytes_in_use, described.bytes_limit) == (3, 5)


@pytest.mark.core
@pytest.mark.parametrize("count", [1, 3, 8])
def test_everything_works_here(count):
    probes = doctor.probe(jax.devices()[:count])
    assert [(probe.what, probe.reason) for probe in probes if not probe.works] == []
    kinds = doctor.describe(jax.devices()[0]).memory_kinds
    assert [probe.required for probe in probes] == [True] + [False] * (len(kinds) - 1) + [True] * 5


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda x, sharding: mu.zeros_like(x), "RuntimeError: the sharding became"),
        (lambda x, sharding: mu.zeros(x.shape, x.dtype, sharding=sharding), "values are wrong"),
        (lambda x, sharding: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_does_not_work_has_a_reason(monkeypatch, fault, reason):
    class Faulty:
        mutable_array = staticmethod(fault)

    monkeypatch.setattr(doctor, "mu", Faulty)
    create = doctor.probe(jax.devices()[:2])[0]
    assert create.required
    assert not create.works
    assert reason in create.reason


def test_an_error_without_a_message_is_a_reason_too():
    def fail():
        raise KeyError

    assert doctor._reason(fail) == "KeyError: "
