"""Rules on triggers: whether each component can become ready.

Most rules look at one component: a batch needs a size, a listed input needs an edge. One rule looks at the whole graph:
*can a component ever run?* A component that is started from outside (manually, by a timer, by a request) can. A
component that waits for inputs can if messages can reach it: on any one of its inputs, or on every input if its trigger
waits for all. The check starts with the components started from outside and adds the components they can feed, until
nothing is added; the others never run.

    source → join ┄delay┄> echo ┄delay┄> join      join waits for all of (source, echo); echo waits for join:
                                                   neither ever runs, although every input has an edge
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rota.graph.components import EVENT_PORTS
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
_INPUT_SOURCES = ("message", *EVENT_PORTS)  # they deliver a message; a timer does not


def check_triggers(index: GraphIndex) -> Iterator[Diagnostic]:
    """Check every trigger by itself."""
    for component in index.components.values():
        yield from _event_sources(index, component)
        yield from _trigger(index, component)
        yield from _clock_domains(index, component)
        yield from _required_inputs(index, component)


# --- one component -------------------------------------------------------------------------------


def _event_sources(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    name = component.id
    path = f"components.{name}.event_sources"
    kinds = {source.type for source in component.event_sources}
    if not kinds:
        yield _problem(
            "graph_validation_error", name, path, "requires at least one event_source", "Add an event source."
        )
    for source in component.event_sources:
        if source.type == "timer" and source.period_ms == 0:
            problem = "timer event_source requires positive period_ms"
            yield _problem("graph_validation_error", name, path, problem, "Set period_ms on the timer.")
        if source.type == "message" and not source.ports:
            problem = "message event_source requires at least one input"
            yield _problem(
                "trigger_missing_input", name, path, problem, "List the inputs whose messages start the component."
            )
        if source.type in _INPUT_SOURCES:
            yield from _missing_edges(index, component, source.ports, path)
    if "timer" in kinds and kinds & set(_INPUT_SOURCES):
        others = ", ".join(sorted(kinds & set(_INPUT_SOURCES)))
        problem = f"mixes a timer with input-driven event sources ({others})"
        fix = "Use two components: one with the timer, one with the inputs."
        yield _problem("incompatible_trigger_edge_mode", name, path, problem, fix)


def _trigger(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    name, trigger = component.id, component.trigger_policy
    path = f"components.{name}.trigger_policy"
    kinds = {source.type for source in component.event_sources}
    if trigger.type in _INPUT_DRIVEN and not index.inputs_of(component):
        problem = f"trigger_policy {trigger.type} requires at least one input"
        yield _problem("trigger_missing_input", name, path, problem, "List the inputs that the trigger waits for.")
    if trigger.type in _INPUT_DRIVEN and "timer" in kinds:
        problem = f"trigger_policy {trigger.type} waits for inputs, and a timer delivers none"
        yield _problem("incompatible_trigger_edge_mode", name, path, problem, "Use trigger_policy on_event.")
    yield from _missing_edges(index, component, trigger.ports, path)
    for problem, fix in _invalid_fields(trigger):
        yield _problem("graph_validation_error", name, path, problem, fix)


def _invalid_fields(trigger: TriggerPolicy) -> Iterator[tuple[str, str]]:
    """Yield a problem and its fix for each invalid number or condition of a trigger."""
    if trigger.type == "batch" and not (trigger.batch_size or trigger.batch_window_ms):
        yield "batch trigger_policy requires batch_size or batch_window_ms", "Set batch_size or batch_window_ms."
    if trigger.type == "rate_limit" and not trigger.min_interval_ms:
        yield "rate_limit trigger_policy requires positive min_interval_ms", "Set min_interval_ms."
    if trigger.debounce_window_ms:
        yield (
            "debounce_window_ms must be 0: debounce merges pending messages and never waits",
            "Remove debounce_window_ms; use min_interval_ms for a minimum time between runs.",
        )
    if trigger.type == "condition" and not trigger.condition:
        yield (
            "condition trigger_policy requires a condition",
            "Set condition to all_inputs_ready, any_input_ready or event_timestamp_present.",
        )


def _missing_edges(
    index: GraphIndex, component: ComponentSpec, ports: tuple[str, ...], path: str
) -> Iterator[Diagnostic]:
    for port in dict.fromkeys(ports):
        if port not in EVENT_PORTS and not index.edges_to(component.id, port):
            problem = f"trigger input has no incoming edge: {port}"
            yield _problem("trigger_missing_input", component.id, f"{path}.inputs", problem, None)


def _clock_domains(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    """Check that a time_sync trigger compares timestamps of one clock only."""
    if component.trigger_policy.type != "time_sync":
        return
    edges = [edge for port in index.inputs_of(component) for edge in index.edges_to(component.id, port)]
    domains = sorted({edge.spec.policy.timestamp_domain for edge in edges})
    if len(domains) > 1:
        message = f"component {component.id}: time_sync compares timestamps of different domains: {', '.join(domains)}"
        path = f"components.{component.id}.trigger_policy"
        ids = [edge.id for edge in edges]
        fix = "Set the same timestamp_domain on all these edges."
        yield Diagnostic.of(
            "incompatible_trigger_edge_mode", message, path, components=[component.id], edges=ids, fix=fix
        )


def _required_inputs(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    """Yield a warning for each required input that can be empty when the component runs."""
    descriptor, awaited = index.descriptors.get(component.id), _awaited(index, component)
    for port in descriptor.inputs if descriptor else ():
        edges = index.edges_to(component.id, port.name)
        if not port.required or port.name in awaited or port.name in component.config or not edges:
            continue
        if not _is_manual(component) and all(edge.keeps_value for edge in edges):
            continue  # a side input with a value that stays: empty only before its first value
        problem = f"requires input {port.name}, and its trigger ({_cause(index, component)}) does not wait for it"
        path = f"components.{component.id}.trigger_policy"
        yield _problem("required_input_not_awaited", component.id, path, problem, None)


def _awaited(index: GraphIndex, component: ComponentSpec) -> tuple[str, ...]:
    """Return the inputs that have a message in every invocation."""
    ports = tuple(dict.fromkeys(index.inputs_of(component)))
    if _waits_for_all(component):
        return ports
    return ports if len(ports) == 1 and not _is_manual(component) else ()


def _is_manual(component: ComponentSpec) -> bool:
    """Whether the component also runs without any message: in every epoch, or by a timer."""
    if component.trigger_policy.type not in {"manual", "on_event"} or component.trigger_policy.ports:
        return False
    return any(source.type not in _INPUT_SOURCES for source in component.event_sources)


def _cause(index: GraphIndex, component: ComponentSpec) -> str:
    if _is_manual(component):
        timer = any(source.type == "timer" for source in component.event_sources)
        return "a timer" if timer else f"{component.trigger_policy.type}: every epoch"
    return f"{component.trigger_policy.type} of {', '.join(index.inputs_of(component)) or 'outside events'}"


def _problem(code: str, component: str, path: str, problem: str, fix: str | None) -> Diagnostic:
    return Diagnostic.of(code, f"component {component} {problem}", path, components=[component], fix=fix)


# --- the whole graph -----------------------------------------------------------------------------


def check_readiness(index: GraphIndex) -> Iterator[Diagnostic]:
    """Yield a warning for each component that never runs. The graph must have no errors."""
    can_run = _can_run(index)
    for name, component in index.components.items():
        if name in can_run:
            continue
        waits = "all" if _waits_for_all(component) else "any"
        ports = ", ".join(index.inputs_of(component))
        message = f"component {name} waits for {waits} of {ports}, and the components that send them never run"
        path = f"components.{name}.trigger_policy"
        yield Diagnostic.of("trigger_never_ready", message, path, components=[name])


def _can_run(index: GraphIndex) -> set[str]:
    """Return the components that can become ready, starting from those that are started from outside."""
    missing = {name: set(index.inputs_of(component)) for name, component in index.components.items()}
    can_run = {name for name, component in index.components.items() if not _needs_messages(index, component)}
    pending = deque(can_run)
    while pending:
        for edge in index.outgoing.get(pending.popleft(), ()):
            name, port = edge.target.component, edge.target.port
            if name in can_run or port not in missing.get(name, ()):
                continue
            missing[name].remove(port)
            if not missing[name] or not _waits_for_all(index.components[name]):
                can_run.add(name)
                pending.append(name)
    return can_run


def _needs_messages(index: GraphIndex, component: ComponentSpec) -> bool:
    """Whether the component runs only when messages arrive on its edges."""
    ports, trigger = index.inputs_of(component), component.trigger_policy
    if not ports or any(port in EVENT_PORTS for port in ports):
        return False
    if trigger.type in _INPUT_DRIVEN or (trigger.type == "on_event" and trigger.ports):
        return True
    by_messages = all(source.type == "message" for source in component.event_sources)
    return trigger.type in {"manual", "on_event"} and by_messages


def _waits_for_all(component: ComponentSpec) -> bool:
    trigger = component.trigger_policy
    return trigger.type in _WAITS_FOR_ALL or (trigger.type == "condition" and trigger.condition == "all_inputs_ready")
