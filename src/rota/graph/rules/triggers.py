"""Triggers: whether what a component waits for can come.

Some rules look at one component: a batch needs a size, a listed input needs an edge. One looks at all of them: *can it
ever run?* Components that are woken from outside (by hand, by a timer, by a request) can. One that is driven by inputs
can when messages can reach them: any one of them, or each of them where the trigger waits for all. Starting from those
that are woken from outside and adding whoever they can drive, until nothing is added, leaves those that never run.

    source → join ┄delay┄> echo ┄delay┄> join      join waits for all of (source, echo); echo waits for join:
                                                   neither ever runs, though every input has an edge
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.spec import ComponentSpec, TriggerPolicy

__all__ = ["check_readiness", "check_triggers"]

_INPUT_DRIVEN = (
    "any_input",
    "all_inputs",
    "time_sync",
    "batch",
    "watermark",
    "condition",
    "debounce",
    "rate_limit",
)
_WAITS_FOR_ALL = ("all_inputs", "time_sync")
_INPUT_SOURCES = ("message", "request", "task_ready", "future_ready")  # they bring something; a timer brings nothing
_ARRIVES_WITHOUT_EDGE = ("request", "task_ready", "future_ready")  # ports that the runtime itself fills


def check_triggers(index: GraphIndex) -> Iterator[Diagnostic]:
    """Every trigger by itself."""
    for component in index.components.values():
        yield from _event_sources(index, component)
        yield from _trigger(index, component)
        yield from _domains(index, component)


# --- one component -------------------------------------------------------------------------------


def _event_sources(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    name = component.id
    path = f"components.{name}.event_sources"
    kinds = {source.type for source in component.event_sources}
    if not kinds:
        yield _broken("graph_validation_error", name, path, "requires at least one event_source", "Add one.")
    for source in component.event_sources:
        if source.type == "timer" and source.period_ms == 0:
            problem = "timer event_source requires positive period_ms"
            yield _broken("graph_validation_error", name, path, problem, "Give the timer a period_ms.")
        if source.type == "message" and not source.ports:
            problem = "message event_source requires at least one input"
            yield _broken("trigger_missing_input", name, path, problem, "List the inputs that wake it.")
        if source.type == "message":
            yield from _unfed(index, component, source.ports, path)
    if "timer" in kinds and kinds & set(_INPUT_SOURCES):
        others = ", ".join(sorted(kinds & set(_INPUT_SOURCES)))
        problem = f"mixes a timer with input-driven event sources ({others})"
        fix = "Split what happens at intervals and what happens on input into two components."
        yield _broken("incompatible_trigger_edge_mode", name, path, problem, fix)


def _trigger(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    name, trigger = component.id, component.trigger_policy
    path = f"components.{name}.trigger_policy"
    kinds = {source.type for source in component.event_sources}
    if trigger.type in _INPUT_DRIVEN and not index.inputs_of(component):
        problem = f"trigger_policy {trigger.type} requires at least one input"
        yield _broken("trigger_missing_input", name, path, problem, "List the inputs it waits for.")
    if trigger.type in _INPUT_DRIVEN and "timer" in kinds:
        problem = f"trigger_policy {trigger.type} waits for inputs, and a timer brings none"
        yield _broken("incompatible_trigger_edge_mode", name, path, problem, "Use trigger_policy on_event.")
    yield from _unfed(index, component, trigger.ports, path)
    for problem, fix in _numbers(trigger):
        yield _broken("graph_validation_error", name, path, problem, fix)


def _numbers(trigger: TriggerPolicy) -> Iterator[tuple[str, str]]:
    """What a trigger's own numbers and words must be."""
    if trigger.type == "batch" and not (trigger.batch_size or trigger.batch_window_ms):
        yield "batch trigger_policy requires batch_size or batch_window_ms", "Give it a size or a window."
    if trigger.type == "rate_limit" and not trigger.min_interval_ms:
        yield "rate_limit trigger_policy requires positive min_interval_ms", "Give it a min_interval_ms."
    if trigger.debounce_window_ms:
        yield (
            "debounce_window_ms must be 0: debounce joins what is pending and never sleeps",
            "Remove debounce_window_ms; min_interval_ms spaces runs out.",
        )
    if trigger.type == "condition" and not trigger.condition:
        yield (
            "condition trigger_policy requires a condition",
            "Use all_inputs_ready, any_input_ready or event_timestamp_present.",
        )


def _unfed(index: GraphIndex, component: ComponentSpec, ports: tuple[str, ...], path: str) -> Iterator[Diagnostic]:
    for port in dict.fromkeys(ports):
        if port not in _ARRIVES_WITHOUT_EDGE and not index.wires_into(component.id, port):
            problem = f"trigger input has no incoming edge: {port}"
            yield _broken("trigger_missing_input", component.id, f"{path}.inputs", problem, None)


def _domains(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    """Times of different clocks cannot be compared."""
    if component.trigger_policy.type != "time_sync":
        return
    wires = [wire for port in index.inputs_of(component) for wire in index.wires_into(component.id, port)]
    domains = sorted({wire.spec.policy.timestamp_domain for wire in wires})
    if len(domains) > 1:
        message = f"component {component.id}: time_sync compares times of different domains: {', '.join(domains)}"
        path = f"components.{component.id}.trigger_policy"
        edges = [wire.spec.id for wire in wires]
        fix = "Give the edges one timestamp_domain."
        yield Diagnostic.of(
            "incompatible_trigger_edge_mode", message, path, components=[component.id], edges=edges, fix=fix
        )


def _broken(code: str, component: str, path: str, problem: str, fix: str | None) -> Diagnostic:
    return Diagnostic.of(code, f"component {component} {problem}", path, components=[component], fix=fix)


# --- all of them ---------------------------------------------------------------------------------


def check_readiness(index: GraphIndex) -> Iterator[Diagnostic]:
    """Components that never run; to be asked of a graph without errors, in which every input has an edge."""
    running = _can_run(index)
    for name, component in index.components.items():
        if name in running:
            continue
        waits = "all" if _waits_for_all(component) else "any"
        ports = ", ".join(index.inputs_of(component))
        message = f"component {name} waits for {waits} of {ports}, and what would send it never runs"
        path = f"components.{name}.trigger_policy"
        yield Diagnostic.of("trigger_never_ready", message, path, components=[name])


def _can_run(index: GraphIndex) -> set[str]:
    """Components that something can make ready, found from those that are woken from outside."""
    unfed = {name: set(index.inputs_of(component)) for name, component in index.components.items()}
    running = {name for name, component in index.components.items() if not _is_driven(index, component)}
    pending = deque(running)
    while pending:
        for wire in index.out_of.get(pending.popleft(), ()):
            name, port = wire.target.component, wire.target.port
            if name in running or port not in unfed.get(name, ()):
                continue
            unfed[name].remove(port)
            if not unfed[name] or not _waits_for_all(index.components[name]):
                running.add(name)
                pending.append(name)
    return running


def _is_driven(index: GraphIndex, component: ComponentSpec) -> bool:
    """Whether it runs only when messages arrive over edges."""
    ports, trigger = index.inputs_of(component), component.trigger_policy
    if not ports or any(port in _ARRIVES_WITHOUT_EDGE for port in ports):
        return False
    if trigger.type in _INPUT_DRIVEN or (trigger.type == "on_event" and trigger.ports):
        return True
    by_messages = all(source.type == "message" for source in component.event_sources)
    return trigger.type in {"manual", "on_event"} and by_messages


def _waits_for_all(component: ComponentSpec) -> bool:
    trigger = component.trigger_policy
    return trigger.type in _WAITS_FOR_ALL or (trigger.type == "condition" and trigger.condition == "all_inputs_ready")
