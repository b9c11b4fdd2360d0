"""What an operation costs, against raw JAX in the same process: `python -m benchmarks`."""
