"""`python -m bench NAME [--json] [--only TEXT]`."""

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
    "graph": ["bench.graph", "bench.graph_compile"],
    "tick": ["bench.tick"],
    "host": ["bench.host"],
    "policy": ["bench.policy_queue", "bench.policy_eevdf", "bench.policy_fair_share"],
    "queue": ["bench.queue", "bench.queue_drain", "bench.queue_size", "bench.queue_processes"],
}


def _cases(name: str) -> Iterator[Case]:
    for module in BENCHES[name]:
        yield from importlib.import_module(module).cases()


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description="rota beside a baseline, in the same run")
    parser.add_argument("name", nargs="?", choices=sorted(BENCHES))
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.add_argument("--only", help="only the cases whose name has this text in it")
    options = parser.parse_args()
    if options.name is None:
        for name in sorted(BENCHES):
            print(f"{name:10} {', '.join(case.name for case in _cases(name))}")
        return 0
    rows = run(options.name, _cases(options.name), options.only)
    if options.json:
        for row in rows:
            print(json.dumps(row.public()), flush=True)
        return 0
    table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
