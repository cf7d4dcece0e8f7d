"""For any input, the loader returns a graph or reports a diagnostic; it never fails with a traceback.

The test damages valid files in three ways. *Bytes*: cut, repeated, replaced, or mixed with special characters of YAML.
*Values*: a value anywhere in the document is removed, moved, or replaced by one of another type, size or depth.
*Meaning*: values and names that are valid by themselves and wrong in their place. A file that still loads is also
compiled, printed and drawn. A failure names its round: the same round number repeats the same damage.
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
from rota.graph.plan_reports import explanation_to_dict, plan_to_dict
from rota.graph.spec import GraphSpec
from rota.graph.svg import to_svg
from tests.graph.drafts import BARE, corpus

ROUNDS = int(os.environ.get("ROTA_FUZZ_ROUNDS", "50000" if os.environ.get("ROTA_SOAK") else "1000"))

SPECIALS = [
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
SPECIALS += [b"\x00", b"\xff", b"\xed\xa0\x80", b"'", b'"', b"{{", b"}}", b"<<: ", b"---\n", b"%", b"#", b"~", b"  "]


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


VALID_ELSEWHERE: dict[str, list[Any]] = {
    "kind": ["immediate", "delay", "state", "async"],
    "from": ["a.out", "b.out", "c.out", "a", "cell.a.out", "missing.out"],
    "to": ["a.in", "b.in", "c.in", "b", "cell.b.in", "missing.in"],
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


def damage_meaning(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    for _ in range(rng.randint(1, 4)):
        known = [
            (container, key)
            for container, key in places(document)
            if isinstance(container, dict) and key in VALID_ELSEWHERE
        ]
        container, key = rng.choice(known)
        candidates = [word for word in VALID_ELSEWHERE[key] if type(word) is type(container[key])] or [container[key]]
        if key == "components" and "loop_policy" not in container:
            continue
        container[key] = rng.choice(candidates)
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
            damaged[at:at] = rng.choice(SPECIALS) * rng.randint(1, 4)
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
        document = damage_meaning(document, rng)
    text = (
        json.dumps(document).encode()
        if rng.random() < 0.5
        else yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass")
    )
    return damage_bytes(text, rng) if rng.random() < 0.4 else text


def outcome_of(data: bytes) -> str:
    """Return how far a file gets: unreadable, refused by the compiler, or compiled to a plan."""
    try:
        spec = load_text(data)
    except GraphInvalid as refusal:
        diagnostics = refusal.diagnostics
    else:
        return outcome_of_spec(spec)
    assert diagnostics
    assert all(each.code in CODES for each in diagnostics)
    msgspec.json.encode(diagnostics)
    return "unreadable"


def outcome_of_spec(spec: GraphSpec) -> str:
    checked = lint(spec, platform=BARE)
    msgspec.json.encode(explanation_to_dict(checked))
    if checked.plan is None:
        assert checked.errors
        return "refused"
    msgspec.json.encode(plan_to_dict(checked.plan))
    to_mermaid(checked.plan).encode()
    to_svg(checked.plan).encode()
    return "plan"


def test_a_damaged_file_gives_a_graph_or_a_diagnostic() -> None:
    outcomes: dict[str, int] = {}
    for number in range(ROUNDS):
        data = a_damaged_file(number)
        try:
            outcome = outcome_of(data)
        except Exception as problem:
            raise AssertionError(f"round {number} of {ROUNDS}: {data!r}") from problem
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    # each outcome must occur often enough; otherwise the test exercises the first stage only
    assert all(outcomes.get(outcome, 0) > ROUNDS // 50 for outcome in ("unreadable", "refused", "plan")), outcomes
