"""A lane decides how a component is executed, never what is committed: the same values on every lane."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota.graph.components import component
from tests.graph.process_parts import mix, tick
from tests.graph.worlds import node, run, wire

EPOCHS = 4
PROCESS_EXAMPLES = max(4, settings.default.max_examples // 12) if settings.default else 4


class Link(NamedTuple):
    """An edge from an earlier component."""

    source: int
    kind: str
    mode: str


class Part(NamedTuple):
    """One component: its inputs, and how it is executed."""

    links: tuple[Link, ...]
    trigger: str
    reentrant: bool
    priority: str
    moved: bool  # to the lane under test


@st.composite
def graphs(draw: st.DrawFn) -> list[Part]:
    """A random acyclic graph: every component reads only from earlier ones."""
    parts: list[Part] = []
    for at in range(draw(st.integers(2, 8))):
        sources = draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True)) if at else []
        kinds = ["immediate", "immediate", "delay", "async"]
        links = tuple(
            Link(
                source,
                draw(st.sampled_from([*kinds, "state"] if number == 0 else kinds)),  # a state has one writer
                draw(st.sampled_from(["queue", "latest", "ring_buffer"])),
            )
            for number, source in enumerate(sources)
        )
        parts.append(
            Part(
                links,
                draw(st.sampled_from(["any_input", "all_inputs"])),
                draw(st.booleans()),
                draw(st.sampled_from(["high", "normal", "low", "background"])),
                draw(st.booleans()),
            )
        )
    return parts


def committed(parts: list[Part], lane: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """What every component published, and in which epoch, when some of them run on this lane."""
    seen: dict[str, list[tuple[int, int]]] = {f"n{at}": [] for at in range(len(parts))}

    @component("same.hear")
    def hear(value: int, context: Any, *, who: str) -> None:
        seen[who].append((context.epoch_id, value))

    nodes, wires = [], []
    for at, part in enumerate(parts):
        execution: dict[str, Any] = {
            "lane": "tried" if part.moved else "main",
            "reentrant": part.reentrant,
            "priority": part.priority,
        }
        salt = {"salt": at + 1}
        if part.links:
            nodes.append(node(mix, f"n{at}", on=part.trigger, config=salt, **execution))
        else:
            nodes.append(node(tick, f"n{at}", config=salt, **execution))
        nodes.append(node(hear, f"hear{at}", on="any_input", config={"who": f"n{at}"}))
        wires.append(wire(f"n{at}.out > hear{at}.value", mode="queue", capacity=99))
        for link in part.links:
            name = f"e{link.source}-{at}"
            wires.append(
                wire(f"n{link.source}.out > n{at}.values", link.kind, id=name, mode=link.mode, **_capacity(link))
            )
    result = run(nodes, wires, lanes={"main": {"type": "event_loop"}, "tried": lane}, steps=EPOCHS)
    assert result.ok, result.errors
    return seen


def _capacity(link: Link) -> dict[str, Any]:
    return {} if link.mode == "latest" else {"capacity": 5}


@given(graphs(), st.integers(1, 4), st.sampled_from([None, "eevdf", "round_robin"]))
def test_event_loop_and_thread_pool_commit_the_same_values(parts: list[Part], threads: int, policy: str | None) -> None:
    lane = {"type": "thread_pool", "max_threads": threads, **({"policy": policy} if policy else {})}
    assert committed(parts, lane) == committed(parts, {"type": "event_loop"})


@given(graphs())
@settings(max_examples=PROCESS_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_event_loop_and_process_pool_commit_the_same_values(parts: list[Part]) -> None:
    lane = {"type": "process_pool", "max_threads": 2}
    assert committed(parts, lane) == committed(parts, {"type": "event_loop"})


@given(graphs())
@settings(max_examples=20)
def test_event_loop_and_fixed_rate_commit_the_same_values(parts: list[Part]) -> None:
    assert committed(parts, {"type": "fixed_rate", "period_ms": 5}) == committed(parts, {"type": "event_loop"})


@given(graphs())
@settings(max_examples=20)
def test_the_same_graph_commits_the_same_values_twice(parts: list[Part]) -> None:
    lane = {"type": "thread_pool", "max_threads": 3}
    assert committed(parts, lane) == committed(parts, lane)


def test_the_property_compares_real_values() -> None:
    chain = [
        Part((), "any_input", False, "normal", True),
        Part((Link(0, "immediate", "queue"),), "any_input", True, "high", True),
        Part((Link(1, "delay", "queue"), Link(0, "immediate", "latest")), "all_inputs", False, "low", True),
    ]
    seen = committed(chain, {"type": "thread_pool", "max_threads": 2})
    assert [len(seen[name]) for name in ("n0", "n1", "n2")] == [4, 4, 3]
    assert len(set(seen["n2"])) == 3


@pytest.mark.soak
def test_many_worker_processes_commit_the_same_values() -> None:
    link = Link(0, "immediate", "queue")
    parts = [Part((), "any_input", False, "normal", False)]
    parts += [Part((link,), "any_input", True, "normal", True) for _ in range(40)]
    lane = {"type": "process_pool", "max_threads": 4}
    assert committed(parts, lane) == committed(parts, {"type": "event_loop"})
