"""Where values enter and leave a run: the component types `rota.input` and `rota.output`.

    components:
      - {id: topic, type: rota.input, execution: {lane: main}}
      - {id: report, type: rota.output, execution: {lane: main}}

An input publishes the value that the run was given under its id, once, when the run begins; `config: {default: …}` is
the value if the run was given none. An output keeps the last value that it received. The result of a run is a
dictionary of its outputs by id, or by `config: {name: …}`. Every registry has both types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.errors import InvalidInput
from rota.graph.components import ComponentType, component, component_type
from rota.graph.invocation import GraphContext
from rota.graph.spec import ComponentSpec, EventSource, TriggerPolicy

__all__ = ["BUILT_IN", "INPUT_TYPE", "OUTPUT_TYPE", "check_inputs", "input_value", "outputs_of", "trigger_of"]

INPUT_TYPE = "rota.input"
OUTPUT_TYPE = "rota.output"


@component(INPUT_TYPE)
def run_input(start: Any, *, context: GraphContext, default: Any = None) -> None:  # noqa: ARG001  # the engine sends it
    """Publish the value that the engine sends at the start of the run; None is a value too."""
    context.publish("out", start)


@component(OUTPUT_TYPE)
class RunOutput:
    """Keeps the last value that it received."""

    def __init__(self, *, name: str = "") -> None:  # noqa: ARG002  # `outputs_of` reads it
        self._values: list[Any] = []  # the last one, if there is any

    def execute(self, value: Any) -> None:
        """Keep a value in place of the one before."""
        self._values = [value]

    def snapshot(self) -> list[Any]:
        """Return the last value, in a list."""
        return self._values

    def restore(self, values: list[Any]) -> None:
        """Continue with what an earlier process received."""
        self._values = list(values)


def _type_of(decorated: Any) -> ComponentType:
    found = component_type(decorated)
    assert found is not None  # noqa: S101  # they are decorated above
    return found


BUILT_IN: Mapping[str, ComponentType] = {INPUT_TYPE: _type_of(run_input), OUTPUT_TYPE: _type_of(RunOutput)}


def trigger_of(type_name: str) -> tuple[EventSource, TriggerPolicy] | None:
    """Return when a component of one of these types runs, if the graph does not say it; None for another type."""
    if type_name == INPUT_TYPE:
        return EventSource(type="start"), TriggerPolicy()
    if type_name == OUTPUT_TYPE:
        return EventSource(type="message", inputs=("value",)), TriggerPolicy(type="any_input", inputs=("value",))
    return None


def check_inputs(components: Mapping[str, ComponentSpec], given: Mapping[str, Any]) -> None:
    """Raise if a run is given a value for which it has no input, or lacks one without a default."""
    inputs = {spec.id: spec for spec in components.values() if spec.type == INPUT_TYPE}
    names = ", ".join(inputs) or "none"
    for name in given:
        if name not in inputs:
            raise InvalidInput(f"the graph has no input {name!r}", field="inputs", hint=f"Its inputs: {names}.")
    for name, spec in inputs.items():
        if name not in given and "default" not in spec.config:
            hint = f"Give it a value, as in `rota graph run FILE --input {name}=VALUE`."
            raise InvalidInput(f"the run needs a value for its input {name!r}", field="inputs", hint=hint)


def input_value(spec: ComponentSpec, given: Mapping[str, Any]) -> Any:
    """Return what a component receives at the start of a run: the value of an input, else None."""
    return given.get(spec.id, spec.config.get("default")) if spec.type == INPUT_TYPE else None


def outputs_of(components: Mapping[str, ComponentSpec], snapshots: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run's outputs by id, from the snapshots of its components; None: it received nothing."""
    found = {spec.id: snapshots.get(spec.id) for spec in components.values() if spec.type == OUTPUT_TYPE}
    names = {name: components[name].config.get("name") or name for name in found}
    return {names[name]: values[-1] if values else None for name, values in found.items()}
