"""Components: functions and classes whose ports are read from the signature, registered by type name."""

from __future__ import annotations

import asyncio
import pickle
import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import msgspec
import pytest

from rota.errors import ComponentInvalid, ComponentUnknown, GraphInvalid
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import GROUP, ComponentRegistry
from rota.graph.components import Batch, ComponentDescriptor, Port, component, component_type
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.run import RuntimeRunner
from tests.graph.worlds import compile_world, make_runner, node, run, wire


def descriptor(thing: Any) -> ComponentDescriptor:
    kind = component_type(thing)
    assert kind is not None
    return kind.descriptor


@component("test.double")
def double(value: int) -> int:
    return 2 * value


class TestPortsAreReadFromTheSignature:
    def test_a_positional_parameter_is_a_required_input_with_its_type(self) -> None:
        assert descriptor(double).inputs == (Port(name="value", payload_type="int", required=True),)

    def test_a_parameter_with_a_default_is_an_optional_input(self) -> None:
        @component
        def greet(name: str = "world") -> str:
            return f"hello {name}"

        assert descriptor(greet).inputs == (Port(name="name", payload_type="str", required=False),)

    def test_star_args_are_one_port_for_many_edges(self) -> None:
        @component
        def join(*parts: str) -> str:
            return " ".join(parts)

        assert descriptor(join).inputs == (Port(name="parts", payload_type="str", multiplicity="multi"),)

    def test_double_star_accepts_all_ports(self) -> None:
        @component
        def collect(**inputs: Any) -> dict[str, Any]:
            return inputs

        assert descriptor(collect).any_ports

    def test_the_return_annotation_is_the_type_of_the_output(self) -> None:
        assert descriptor(double).outputs == (Port(name="out", payload_type="int"),)

    def test_a_function_that_returns_nothing_has_no_output(self) -> None:
        @component
        def swallow(value: int) -> None:
            pass

        assert descriptor(swallow).outputs == ()

    def test_a_function_with_a_context_has_an_output_even_if_it_returns_nothing(self) -> None:
        @component
        def publish(value: int, context: GraphContext) -> None:
            context.publish("out", value)

        assert [port.name for port in descriptor(publish).outputs] == ["out"]

    def test_an_optional_type_is_the_type_without_none(self) -> None:
        @component
        def maybe(value: int | None = None) -> int | None:
            return value

        assert descriptor(maybe).inputs[0].payload_type == "int"
        assert descriptor(maybe).outputs[0].payload_type == "int"

    def test_any_missing_and_mixed_annotations_accept_every_type(self) -> None:
        @component
        def loose(one: Any, two, three: int | str):  # type: ignore[no-untyped-def]
            return one, two, three

        assert [port.payload_type for port in descriptor(loose).inputs] == ["", "", ""]

    def test_a_batch_port_has_the_type_of_its_elements(self) -> None:
        @component
        def total(values: Batch[int]) -> int:
            return sum(values)

        assert descriptor(total).inputs[0].payload_type == "int"

    def test_types_can_be_given_explicitly(self) -> None:
        @component("typed", inputs={"value": float}, outputs={"left": int, "right": str})
        def typed(value):  # type: ignore[no-untyped-def]
            return {"left": value}

        assert descriptor(typed).inputs[0].payload_type == "float"
        assert descriptor(typed).outputs == (
            Port(name="left", payload_type="int"),
            Port(name="right", payload_type="str"),
        )

    def test_context_and_invocation_are_not_ports(self) -> None:
        @component
        def inspect(invocation: Invocation, value: int, context: GraphContext) -> int:
            return value

        assert [port.name for port in descriptor(inspect).inputs] == ["value"]

    def test_a_class_is_described_by_its_execute(self) -> None:
        @component("test.Sum")
        class Sum:
            def __init__(self, *, start: int = 0) -> None:
                self.total = start

            def execute(self, value: int) -> int:
                self.total += value
                return self.total

        kind = component_type(Sum)
        assert kind is not None
        assert kind.descriptor.inputs == (Port(name="value", payload_type="int", required=True),)
        assert kind.config_names == ("start",)


class TestRefused:
    def test_a_class_without_execute(self) -> None:
        with pytest.raises(ComponentInvalid, match="execute"):

            @component
            class Empty:
                pass

    def test_a_generator(self) -> None:
        with pytest.raises(ComponentInvalid, match="generator"):

            @component
            def stream(value: int):  # type: ignore[no-untyped-def]
                yield value

    def test_something_that_is_not_a_component_cannot_be_registered(self) -> None:
        with pytest.raises(ComponentInvalid, match="not a component"):
            ComponentRegistry([len])

    def test_two_components_with_the_same_type_name(self) -> None:
        @component("test.double")
        def other(value: int) -> int:
            return value

        with pytest.raises(ComponentInvalid, match=r"two components have the type name 'test\.double'"):
            ComponentRegistry([double, other])

    def test_an_unknown_type_lists_the_known_types(self) -> None:
        with pytest.raises(ComponentUnknown, match=r"Registered types: test\.double"):
            ComponentRegistry([double]).find("test.triple")

    def test_a_subclass_of_a_component_is_not_a_component(self) -> None:
        @component
        class Parent:
            def execute(self) -> int:
                return 1

        class Child(Parent):
            pass

        assert component_type(Child) is None

    def test_configuration_that_is_unknown_or_missing(self) -> None:
        @component
        def scale(value: int = 1, *, factor: int) -> int:
            return value * factor

        with pytest.raises(GraphInvalid, match="has no config field facter"):
            make_runner([node(scale, config={"factor": 2, "facter": 3})])
        with pytest.raises(GraphInvalid, match="missing required config field factor"):
            make_runner([node(scale)])

    def test_configuration_is_checked_again_if_the_plan_was_compiled_without_the_registry(self) -> None:
        @component
        def scale(value: int = 1, *, factor: int) -> int:
            return value * factor

        plan, registry = compile_world([node(scale, config={"factor": 2})])
        wrong = msgspec.structs.replace(plan.spec.components[0], config={"facter": 3})
        unaware = compile_graph(msgspec.structs.replace(plan.spec, components=(wrong,)))
        with pytest.raises(ComponentInvalid, match="config field factor is required"):
            RuntimeRunner(unaware, registry)

    def test_an_instance_that_cannot_be_made_is_a_typed_error(self) -> None:
        @component("test.Fragile")
        class Fragile:
            def __init__(self, *, size: int) -> None:
                if size < 0:
                    raise ValueError("below zero")

            def execute(self) -> None:
                pass

        with pytest.raises(ComponentInvalid, match=r"test\.Fragile cannot be created: ValueError: below zero"):
            make_runner([node(Fragile, config={"size": -1})])

    @pytest.mark.parametrize("stamp", ["now", float("nan"), float("inf"), True])
    def test_a_timestamp_that_cannot_be_compared(self, stamp: Any) -> None:
        @component("test.stamps", outputs=("out",))
        def stamps(context: GraphContext) -> None:
            context.publish("out", 1, timestamp_ms=stamp)

        assert "with the invalid timestamp" in run([node(stamps)]).errors[0]


class TestTheDecoratedObjectIsUnchanged:
    def test_it_can_be_called(self) -> None:
        assert double(4) == 8

    def test_it_can_be_pickled(self) -> None:
        assert pickle.loads(pickle.dumps(double)) is double


class TestTheRegistry:
    def test_it_describes_types_for_the_compiler(self) -> None:
        registry = ComponentRegistry([double])
        assert registry.describe("test.double") == descriptor(double)
        assert registry.describe("test.triple") is None
        assert registry.names() == ("test.double",)

    def test_all_decorated_objects_of_a_module_are_registered(self) -> None:
        assert "test.double" in ComponentRegistry().load_module(__name__)

    def test_a_module_that_cannot_be_imported_is_a_typed_error(self) -> None:
        with pytest.raises(ComponentInvalid, match=r"no\.such\.module"):
            ComponentRegistry().load_module("no.such.module")

    def test_entry_points_add_components_under_their_own_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        points = [EntryPoint("acme.twice", f"{__name__}:double", GROUP)]
        monkeypatch.setattr("rota.graph.component_registry.entry_points", lambda *, group: points)
        registry = ComponentRegistry()
        assert registry.load_entry_points() == ("acme.twice",)
        assert registry.find("acme.twice").implementation is double

    def test_an_entry_point_that_cannot_be_loaded_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        points = [EntryPoint("acme.twice", "no.such.module:double", GROUP)]
        monkeypatch.setattr("rota.graph.component_registry.entry_points", lambda *, group: points)
        with pytest.raises(ComponentInvalid, match=r"entry point acme\.twice of rota\.components cannot be loaded"):
            ComponentRegistry().load_entry_points()

    def test_an_entry_point_may_refer_to_a_module(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("acme_parts")
        module.double = double  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "acme_parts", module)
        points = [EntryPoint("acme", "acme_parts", GROUP)]
        monkeypatch.setattr("rota.graph.component_registry.entry_points", lambda *, group: points)
        assert ComponentRegistry().load_entry_points() == ("test.double",)


log: list[Any] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()


@component("test.one")
def one() -> int:
    return 1


@component("test.note")
def note(value: Any) -> None:
    log.append(value)


class TestCalling:
    def test_keyword_only_parameters_are_configuration(self) -> None:
        @component
        def scale(value: int, *, factor: int = 2) -> int:
            return value * factor

        nodes = [node(one), node(scale, config={"factor": 7}, on="any_input"), node(note, on="any_input")]
        assert run(nodes, [wire("test.one.out > scale.value"), wire("scale.out > test.note.value")]).ok
        assert log == [7]

    def test_returning_none_publishes_nothing(self) -> None:
        @component
        def only_even(value: int) -> int | None:
            return value if value % 2 == 0 else None

        nodes = [node(one), node(only_even, on="any_input"), node(note, on="any_input")]
        assert run(nodes, [wire("test.one.out > only_even.value"), wire("only_even.out > test.note.value")]).ok
        assert log == []

    def test_several_outputs_are_returned_as_a_dictionary(self) -> None:
        @component(outputs=("small", "large"))
        def sort(value: int) -> dict[str, int]:
            return {"small": value} if value < 10 else {"large": value}

        nodes = [node(one), node(sort, on="any_input"), node(note, on="any_input")]
        assert run(nodes, [wire("test.one.out > sort.value"), wire("sort.small > test.note.value")]).ok
        assert log == [1]

    def test_several_outputs_without_a_dictionary_are_an_error(self) -> None:
        @component(outputs=("small", "large"))
        def sort() -> int:
            return 3

        result = run([node(sort)])
        assert "has the outputs large, small, but returned a value of type int" in result.errors[0]

    def test_a_port_that_does_not_exist_is_an_error_that_names_those_that_do(self) -> None:
        @component(outputs=("out",))
        def confused(context: GraphContext) -> None:
            context.publish("owt", 1)

        result = run([node(confused)])
        assert "has no output port 'owt'" in result.errors[0]

    def test_context_and_invocation_may_be_anywhere_in_the_signature(self) -> None:
        @component
        def mixed(invocation: Invocation, value: int, *, context: GraphContext, factor: int = 3) -> int:
            return value * factor * context.epoch_id * invocation.epoch_id

        nodes = [node(one), node(mixed, on="any_input"), node(note, on="any_input")]
        run(nodes, [wire("test.one.out > mixed.value"), wire("mixed.out > test.note.value")], steps=2)
        assert log == [3, 12]

    def test_many_edges_fill_star_args_in_their_order(self) -> None:
        @component
        def join(head: str, *parts: str) -> None:
            log.append((head, parts))

        @component
        def say(*, word: str) -> str:
            return word

        nodes = [
            *(node(say, word, config={"word": word}) for word in ("a", "b", "c")),
            node(join, on="all_inputs"),
        ]
        wires = [wire("b.out > join.parts"), wire("a.out > join.head"), wire("c.out > join.parts")]
        assert run(nodes, wires).ok
        assert log == [("a", ("b", "c"))]

    def test_named_inputs_arrive_by_name(self) -> None:
        @component
        def gather(**inputs: Any) -> None:
            log.append(inputs)

        nodes = [node(one), node(gather, on="any_input")]
        assert run(nodes, [wire("test.one.out > gather.anything")]).ok
        assert log == [{"anything": 1}]

    def test_a_missing_input_without_a_default_is_an_error_that_says_what_to_do(self) -> None:
        @component
        def add(left: int, right: int) -> int:
            return left + right

        nodes = [node(one), node(one, "two"), node(add, on={"type": "any_input", "inputs": ["left"]})]
        wires = [wire("test.one.out > add.left"), wire("two.out > add.right", kind="delay")]
        result = run(nodes, wires)
        assert "input 'right' had no message" in result.errors[0]

    def test_a_class_keeps_its_state_from_run_to_run_of_its_runner(self) -> None:
        @component
        class Counter:
            def __init__(self, *, start: int) -> None:
                self.count = start

            def execute(self) -> None:
                self.count += 1
                log.append(self.count)

        runner = make_runner([node(Counter, config={"start": 10})], steps=2)
        runner.run()
        runner.run()
        assert log == [11, 12, 13, 14]

    def test_a_static_parameter_may_be_positional_only(self) -> None:
        @component
        def shout(value: str, /) -> None:
            log.append(value.upper())

        @component
        def hello() -> str:
            return "hello"

        assert run([node(hello), node(shout, on="any_input")], [wire("hello.out > shout.value")]).ok
        assert log == ["HELLO"]


class TestAsyncComponents:
    def test_an_async_function_runs_on_every_kind_of_lane_of_this_process(self) -> None:
        @component
        async def later(value: int) -> int:
            return value + 1

        lanes = {"main": {"type": "event_loop"}, "pool": {"type": "thread_pool", "max_threads": 2}}
        for lane in lanes:
            log.clear()
            nodes = [node(one), node(later, on="any_input", lane=lane), node(note, on="any_input")]
            wires = [wire("test.one.out > later.value"), wire("later.out > test.note.value")]
            assert run(nodes, wires, lanes=lanes, steps=2).ok
            assert log == [2, 2]

    def test_inside_a_running_event_loop_the_error_says_what_to_do(self) -> None:
        @component
        async def later() -> int:
            return 1

        async def main() -> str:
            return run([node(later)]).errors[0]

        assert "a thread that already runs an event loop" in asyncio.run(main())

    def test_in_a_thread_beside_a_running_event_loop_it_runs(self) -> None:
        @component
        async def later() -> int:
            await asyncio.sleep(0)
            log.append("ran")
            return 1

        async def main() -> bool:
            return (await asyncio.to_thread(run, [node(later)])).ok

        assert asyncio.run(main())
        assert log == ["ran"]
