"""Every declared method, called at a daemon that serves a file of the first kernel: no internal error, no damage."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as shapes
import pytest

from rota.errors import StoreError
from rota.kernel import Kernel
from rota.rpc.methods import METHODS
from rota.store import open as open_store
from tests.daemon.harness import Raw, serving
from tests.daemon.test_fuzz import LEFT_OUT, Maker, check
from tests.store.first_kernel_files import VERSIONS, make_first_kernel

pytestmark = pytest.mark.only_on("memory", "file", reason="a file of the first kernel is an SQLite file")
CALLS = 4  # of each method, with values that fit
VALUES: dict[str, list[Any]] = {
    "pid": [1, 2, 3, 4, 5, 9, 10],
    "sched_id": [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14],
    "parent_pid": [None, 1],
    "dim": ["tokens", "cost_micro", "any name"],
    "state": [None, "READY", "RUNNING", "SUSPENDED", "DEAD"],
    "exit_kind": ["completed", "failed", "crashed"],
    "worker_id": ["w-1", "w-2"],
    "policy": [None, "strict", "eevdf", "fair_share"],
    "queued": ["keep"],
    "verb": ["pause", "resume", "archive"],
    "wait_s": [0.0],
    "max_n": [1, 5],
    "amount": [1, 5],
    "now": [None, 10_000.0],
    "limit": [10],
    "offset": [0],
}


class FittingMaker(Maker):
    """Values by the names of fields, where the names say what fits."""

    def fields(self, fields: Any, depth: int) -> dict[str, Any]:
        made = super().fields(fields, depth)
        made.pop("unknown", None)
        names = {field.name for field in fields}
        made |= {name: self.chance.choice(VALUES[name]) for name in names & VALUES.keys() if name in made or depth == 0}
        return {name: value for name, value in made.items() if value is not None}


STORE_ERRORS = {StoreError.code, *(kind.code for kind in StoreError.__subclasses__())}


@pytest.mark.parametrize("version", VERSIONS)
def test_no_method_finds_damage_in_a_file_of_the_first_kernel(tmp_path: Path, version: int) -> None:
    path = tmp_path / "kernel.db"
    make_first_kernel(str(path), version)
    maker = FittingMaker(random.Random(version))
    answered: dict[str, bool] = {}
    with serving(path) as daemon, Raw(daemon.unix) as raw:
        for name in [name for name in METHODS if name not in LEFT_OUT] * CALLS:
            params = maker.value(shapes.type_info(METHODS[name].params))
            raw.send(msgspec.json.encode({"jsonrpc": "2.0", "id": name, "method": name, "params": params}) + b"\n")
            answer = raw.receive()
            assert isinstance(answer, dict)
            check(answer)
            error = answer.get("error", {"code": 0})
            assert error["code"] not in STORE_ERRORS, (name, params, error)
            answered[name] = answered.get(name, False) or "result" in answer
    assert sum(answered.values()) > len(answered) // 4, [name for name, ok in answered.items() if not ok]
    kernel = Kernel(open_store(str(path)))
    assert kernel.check() == []
    kernel.store.close()
