"""Fuzzing a daemon: it always sends valid responses, and survives.

Calls are generated from the types of the method table, half of them damaged; between them are arbitrary bytes. 1,000
cases here, 100,000 under `./dev soak` (`ROTA_FUZZ_CASES`), with a check of memory before and after.
"""

from __future__ import annotations

import os
import random
import string
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as shapes
import pytest

from rota.errors import CODES
from rota.rpc.methods import METHODS
from tests.daemon.harness import Process, Raw, make_token
from tests.daemon.http_client import rpc

CASES = int(os.environ.get("ROTA_FUZZ_CASES", "100000" if "ROTA_SOAK" in os.environ else "300"))
GROWTH_KIB_MAX = 96 * 1024  # the store's caches, the allocator's slack, and what the limits allow
SEED = 20_260_508
# what would rightly take long, or take the daemon's own file away
LEFT_OUT = {"kernel.sched.wait", "system.prune", "system.checkpoint"}
NAMES = [name for name in METHODS if name not in LEFT_OUT]
ODD: list[Any] = [None, True, -1, 0, 2**63, 2**70, 1e308, -0.0, "", "\x00", "\ud7ff", "💥" * 50, [], {}, [[]], {"": {}}]


class Maker:
    """Values of a type, and values that are not."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def value(self, shape: Any, depth: int = 0) -> Any:  # noqa: PLR0911, PLR0912  # a case for each kind of type
        if self.chance.random() < 0.04:
            return self.chance.choice(ODD)
        match shape:
            case shapes.IntType():
                return self.chance.choice([1, 2, 3, 0, -1, 7, 10**6])
            case shapes.FloatType():
                return self.chance.choice([0.0, 1.0, 0.001, 1e9, -1.0])
            case shapes.StrType():
                return self.chance.choice(["x", "alpha", "manual", "READY", "completed", "", "é" * 300, "tokens"])
            case shapes.BoolType():
                return self.chance.random() < 0.5
            case shapes.NoneType() | shapes.AnyType():
                return self.chance.choice(ODD)
            case shapes.LiteralType(values=values):
                return self.chance.choice(list(values))
            case shapes.EnumType(cls=cls):
                return self.chance.choice(list(cls)).value
            case shapes.UnionType(types=types):
                return self.value(self.chance.choice([t for t in types if not isinstance(t, shapes.CustomType)]), depth)
            case shapes.ListType(item_type=item) | shapes.VarTupleType(item_type=item):
                return [self.value(item, depth + 1) for _ in range(self.chance.randrange(3))]
            case shapes.TupleType(item_types=items):
                return [self.value(item, depth + 1) for item in items]
            case shapes.DictType(key_type=key, value_type=item):
                return {str(self.value(key, depth + 1)): self.value(item, depth + 1) for _ in range(2)}
            case shapes.StructType(cls=cls, array_like=True):
                return [self.value(field.type, depth + 1) for field in shapes.type_info(cls).fields]  # type: ignore[attr-defined]
            case shapes.StructType(fields=fields):
                return self.fields(fields, depth)
        return self.chance.choice(ODD)

    def fields(self, fields: Any, depth: int) -> dict[str, Any]:
        made = {
            field.name: self.value(field.type, depth + 1)
            for field in fields
            if field.required or self.chance.random() < 0.4
        }
        if self.chance.random() < 0.03:
            made["unknown"] = 1
        if made and self.chance.random() < 0.03:
            del made[self.chance.choice(list(made))]
        made.pop("wait_s", None)
        return made


SHAPES = {name: shapes.type_info(METHODS[name].params) for name in NAMES}


def request(maker: Maker) -> Any:
    chance = maker.chance
    name = chance.choice(NAMES)
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": chance.choice([1, "a", 2.5, 10**30]), "method": name}
    body["params"] = maker.value(SHAPES[name])
    if chance.random() < 0.05:
        body[chance.choice(["jsonrpc", "method", "params", "id"])] = chance.choice(ODD)
    if chance.random() < 0.05:
        del body[chance.choice(list(body))]
    return body


def case(maker: Maker) -> bytes:
    """One line."""
    chance = maker.chance
    kind = chance.random()
    if kind < 0.1:
        return bytes(chance.randrange(256) for _ in range(chance.randrange(60))).replace(b"\n", b" ")
    if kind < 0.15:
        return "".join(chance.choices(string.printable + '{}[]":,', k=80)).replace("\n", " ").encode()
    if kind < 0.2:
        return b"[" * chance.randrange(200) + b"]" * chance.randrange(200)
    body = [request(maker) for _ in range(chance.randrange(4))] if kind < 0.3 else request(maker)
    raw = msgspec.json.encode(body)
    if kind < 0.4 and raw:
        at = chance.randrange(len(raw))
        raw = raw[:at] + bytes([chance.randrange(256)]).replace(b"\n", b" ") + raw[at + 1 :]
    return raw


def check(answer: Any) -> None:
    """Check that a response is valid JSON-RPC and not an internal error."""
    for each in answer if isinstance(answer, list) else [answer]:
        assert each["jsonrpc"] == "2.0"
        assert ("result" in each) != ("error" in each)
        if "error" in each:
            assert each["error"]["code"] in CODES
            assert each["error"]["code"] != -32603, each
            assert each["error"]["message"]


def receive_up_to(raw: Raw, ident: str) -> dict[str, Any]:
    """Send a request and read all responses up to its own; others may come before and after it."""
    raw.send(msgspec.json.encode({"jsonrpc": "2.0", "id": ident, "method": "kernel.sched.counts"}) + b"\n")
    while (answer := raw.receive()) is not None:
        check(answer)
        if isinstance(answer, dict) and answer.get("id") == ident:
            return answer
    raise AssertionError("the daemon has closed the connection")


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_any_input_gets_valid_responses_and_the_daemon_survives(tmp_path: Path, transport: str) -> None:
    maker = Maker(random.Random(SEED))
    daemon = Process(str(tmp_path / "rota.db"), "--listen", "127.0.0.1:0")
    try:
        unix, url = daemon.addresses
        token = make_token(daemon.path, "admin")
        with Raw(unix) as raw:
            for number in range(CASES):
                if number == CASES // 10:
                    before_kib = daemon.memory_kib()
                body = case(maker)
                while b"access_token" in body:  # a wrong one would end the rights of the connection
                    body = case(maker)
                if transport == "unix":
                    raw.send(body + b"\n")
                    receive_up_to(raw, f"mark {number}")  # notifications get no response, but this request does
                else:
                    response = rpc(url, token, body)
                    assert response.status in (200, 204, 400)
                    if response.status == 200:
                        check(response.json)
            assert "result" in receive_up_to(raw, "the last")
        assert daemon.memory_kib() - before_kib < GROWTH_KIB_MAX
    finally:
        code = daemon.stop()
    assert code == 0
    assert not [line for line in daemon.log if "defect" in line or "Traceback" in line]
