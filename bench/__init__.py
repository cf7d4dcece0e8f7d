"""Benchmarks: rota beside a baseline, in the same run. `./dev bench NAME [--json]`."""
