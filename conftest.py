"""The one place that says what every test, doctest and documentation block runs on.

It stands at the root, above both `src` and `tests`, so that `pytest --doctest-modules src` and
pytest-xdist's workers see the same eight devices.
"""

import os

# Read by JAX when it starts its CPU backend, so before any test imports it. A count that is already
# in XLA_FLAGS would win or lose by its position; the last one wins, and ours is the last.
# The programs are tiny and many: LLVM's optimizations cost more than they give. XLA's own passes,
# which decide what is communicated and copied, run all the same.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
).strip()

import pytest
from hypothesis import HealthCheck, settings

DEEP = os.environ.get("MUTARRAY_DEEP") == "1"
CI = bool(os.environ.get("CI"))

# An example that is the first of its shape compiles, which takes far longer than those after it:
# times say nothing about the test, and only the number of examples is a budget.
_timeless = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("local", max_examples=100, **_timeless)
settings.register_profile("ci", max_examples=100, derandomize=True, print_blob=True, **_timeless)
settings.register_profile("deep", max_examples=5000, print_blob=True, **_timeless)
settings.load_profile("deep" if DEEP else "ci" if CI else "local")


def pytest_configure(config: pytest.Config) -> None:
    """Lets MUTARRAY_DEEP=1 select the tests that the default marker expression leaves out."""
    if DEEP and config.option.markexpr == "not deep":
        config.option.markexpr = ""
