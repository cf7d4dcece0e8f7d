"""`python -m bench NAME [--json] [--only TEXT] [--attribute]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator

from bench.harness import Case, run, table

# Each bench is a list of modules, and each module has `cases() -> Iterator[Case]`.
BENCHES = {
    "fleet": ["bench.fleet_callable", "bench.fleet_commands"],
    "graph": ["bench.graph", "bench.graph_compile", "bench.graph_fleet"],
    "tick": ["bench.tick"],
    "host": ["bench.host"],
    "policy": ["bench.policy_queue", "bench.policy_eevdf", "bench.policy_fair_share"],
    "daemon": ["bench.daemon"],
    "mcp": ["bench.mcp"],
    "postgres": ["bench.postgres"],
    "queue": ["bench.queue", "bench.queue_drain", "bench.queue_size", "bench.queue_processes", "bench.queue_owners"],
    "cpu": ["bench.cpu", "bench.cpu_live"],
    "telemetry": ["bench.telemetry"],
    "web": ["bench.web", "bench.telemetry"],  # what a fleet pays for being watched
    "ray": ["bench.ray_runs"],
}


def _cases(name: str) -> Iterator[Case]:
    for module in BENCHES[name]:
        yield from importlib.import_module(module).cases()


def _attribute(name: str) -> int:
    """Let every module of a bench that can say where its time goes say it."""
    modules = [importlib.import_module(module) for module in BENCHES[name]]
    telling = [module for module in modules if hasattr(module, "attribute")]
    for module in telling:
        module.attribute()
    if not telling:
        print(f"{name} does not say where its time goes", file=sys.stderr)
    return 0 if telling else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description="rota beside a baseline, in the same run")
    parser.add_argument("name", nargs="?", choices=sorted(BENCHES))
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.add_argument("--only", help="only the cases whose name has this text in it")
    parser.add_argument("--attribute", action="store_true", help="where the time goes, instead of the cases (cpu)")
    options = parser.parse_args()
    if options.name is None:
        for name in sorted(BENCHES):
            print(f"{name:10} {', '.join(case.name for case in _cases(name))}")
        return 0
    if options.attribute:
        return _attribute(options.name)
    rows = run(options.name, _cases(options.name), options.only)
    if options.json:
        for row in rows:
            print(json.dumps(row.public()), flush=True)
        return 0
    table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
