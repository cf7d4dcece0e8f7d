"""Whatever is fed to the loader, the answer is a graph or a diagnostic, never a traceback.

Three kinds of damage are done to good files. *Bytes*: cut, doubled, swapped, sprinkled with signs that mean something
to YAML. *Values*: anywhere in the document something is replaced by something of another type, size or depth, dropped,
or put somewhere else. *Sense*: words and names that are right by themselves and wrong where they stand. What still
loads is compiled, printed and drawn as well. A failure names its round: the same round does the same damage again.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import msgspec
import yaml

from rota.errors import GraphInvalid
from rota.graph.compiler import lint
from rota.graph.diagnostics import CODES
from rota.graph.loader import load_text
from rota.graph.mermaid import to_mermaid
from rota.graph.shapes import explain_shape, plan_shape
from rota.graph.spec import GraphSpec
from rota.graph.svg import to_svg
from tests.graph.drafts import BARE, corpus

ROUNDS = int(os.environ.get("ROTA_FUZZ_ROUNDS", "50000" if os.environ.get("ROTA_SOAK") else "1000"))

SIGNS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"&a ",
    b"*a ",
    b"!",
    b"!!python/object:x ",
    b"|",
    b">",
    b"- ",
    b"? ",
    b"\n",
    b"\t",
]
SIGNS += [b"\x00", b"\xff", b"\xed\xa0\x80", b"'", b'"', b"{{", b"}}", b"<<: ", b"---\n", b"%", b"#", b"~", b"  "]


def junk(rng: random.Random) -> Any:
    return rng.choice(
        [
            None,
            True,
            -1,
            0,
            2**31,
            2**63,
            -(2**70),
            1.5,
            1e308,
            "",
            " ",
            "a",
            "a.b.c",
            ".",
            "..",
            "x" * 129,
            "é" * 3000,
            "\ud800",
            "{{n}}",
            "{{",
            "\x00",
            [],
            {},
            [[]],
            {"": {"": {}}},
            ["a", "a"],
            {"id": "a"},
            {"type": "manual"},
            {"n": {"n": {"n": {"n": {"n": {"n": {"n": {"n": {"n": 1}}}}}}}}},
        ]
    )


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    found = []
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            found.append((value, key))
            found += places(value[key])
    return found


def damage_values(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(places(document))
        what = rng.random()
        if what < 0.5:
            container[key] = junk(rng)
        elif what < 0.65:
            del container[key]
        elif what < 0.8:
            other, other_key = rng.choice(places(document) or [(container, key)])
            container[key] = json.loads(json.dumps(other[other_key]))
        elif isinstance(container, list):
            container += [container[key]] * rng.randint(1, 3)
        else:
            container[rng.choice(["extra", "id", "type", "config", "policy", "kind", "<<"])] = junk(rng)
        if not places(document):
            break
    return document


SENSE: dict[str, list[Any]] = {
    "kind": ["immediate", "delay", "state", "async"],
    "from": ["a.out", "b.out", "c.out", "a", "cell.a.out", "nobody.out"],
    "to": ["a.in", "b.in", "c.in", "b", "cell.b.in", "nobody.in"],
    "lane": ["main", "pool", "own", "elsewhere"],
    "depends_on": [["a"], ["b"], ["c", "c"], ["a", "b"]],
    "trigger_policy": [
        {"type": "all_inputs", "inputs": ["in"]},
        {"type": "batch"},
        {"type": "time_sync", "input": "x"},
    ],
    "event_sources": [[], [{"type": "timer"}, {"type": "message"}], [{"type": "request"}]],
    "policy": [
        {"mode": "queue", "capacity": 512, "overflow": "block"},
        {"copy_policy": "move_only", "readers": "multi"},
    ],
    "components": [["a"], ["a", "b", "c"], ["b"]],
    "id": ["a", "b", "ab", "e0"],
    "type": ["event_loop", "queue", "manual_step", "fixed_rate", "condition", "manual", "request"],
    "schema_version": [1, 2],
}


def damage_sense(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    for _ in range(rng.randint(1, 4)):
        known = [
            (container, key) for container, key in places(document) if isinstance(container, dict) and key in SENSE
        ]
        container, key = rng.choice(known)
        fitting = [word for word in SENSE[key] if type(word) is type(container[key])] or [container[key]]
        if key == "components" and "loop_policy" not in container:
            continue
        container[key] = rng.choice(fitting)
    return document


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(damaged) + 1)
        end = min(len(damaged), at + rng.randint(0, 30))
        what = rng.random()
        if what < 0.3:
            del damaged[at:end]
        elif what < 0.7:
            damaged[at:at] = rng.choice(SIGNS) * rng.randint(1, 4)
        elif what < 0.85:
            damaged[at:at] = damaged[at:end] * rng.randint(1, 3)
        else:
            damaged[at:end] = rng.randbytes(end - at)
    return bytes(damaged)


def a_damaged_file(number: int) -> bytes:
    rng = random.Random(number)
    document = rng.choice(corpus())
    damage = rng.random()
    if damage < 0.4:
        document = damage_values(document, rng)
    elif damage < 0.8:
        document = damage_sense(document, rng)
    text = (
        json.dumps(document).encode()
        if rng.random() < 0.5
        else yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass")
    )
    return damage_bytes(text, rng) if rng.random() < 0.4 else text


def fate_of(data: bytes) -> str:
    """What becomes of a file: refused when it is loaded, refused when it is compiled, or a plan."""
    try:
        spec = load_text(data)
    except GraphInvalid as refusal:
        diagnostics = refusal.diagnostics
    else:
        return fate_of_spec(spec)
    assert diagnostics
    assert all(each.code in CODES for each in diagnostics)
    msgspec.json.encode(diagnostics)
    return "unreadable"


def fate_of_spec(spec: GraphSpec) -> str:
    checked = lint(spec, platform=BARE)
    msgspec.json.encode(explain_shape(checked))
    if checked.plan is None:
        assert checked.errors
        return "refused"
    msgspec.json.encode(plan_shape(checked.plan))
    to_mermaid(checked.plan).encode()
    to_svg(checked.plan).encode()
    return "plan"


def test_a_damaged_file_gives_a_graph_or_a_diagnostic() -> None:
    fates: dict[str, int] = {}
    for number in range(ROUNDS):
        data = a_damaged_file(number)
        try:
            fate = fate_of(data)
        except Exception as problem:
            raise AssertionError(f"round {number} of {ROUNDS}: {data!r}") from problem
        fates[fate] = fates.get(fate, 0) + 1
    # a fuzz that only ever meets the first gate tests the first gate
    assert all(fates.get(fate, 0) > ROUNDS // 50 for fate in ("unreadable", "refused", "plan")), fates
