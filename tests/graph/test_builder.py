"""Graphs that are built in Python: what they compile to, what is refused, and that YAML is the same graph."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import GraphInvalid
from rota.graph import Graph, RuntimeRunner, RuntimeRunnerOptions, load_text
from rota.graph.run_values import outputs_of
from tests.graph import report_parts as parts


def run(graph: Graph, **inputs: Any) -> Any:
    """Run a graph in this thread and return its outputs."""
    plan = graph.plan()
    options = RuntimeRunnerOptions(run_until_idle=True, inputs=inputs)
    result = RuntimeRunner(plan, graph.registry(), options).run()
    assert result.ok, result.errors
    return outputs_of(plan.components, result.snapshots)


def report() -> Graph:
    graph = Graph("report")
    plan = graph.node(parts.plan_topic)
    found = [graph.node(parts.answer, name=f"r{i}", which=i)(plan) for i in range(3)]
    draft = graph.loop(parts.critic, parts.revise, until=parts.accepted, max_iterations=4)(*found)
    graph.output(graph.node(parts.write)(draft, title="Owls"))
    return graph


REPORT = "Owls: past of owls; present of owls; future of owls (revised 3 times)"


class TestBuilding:
    def test_a_graph_reads_like_its_picture_and_runs(self) -> None:
        assert run(report(), topic="owls") == {"result": REPORT}

    def test_parameters_of_a_node_that_is_not_called_are_inputs_of_the_run(self) -> None:
        graph = Graph("inputs")
        graph.output(graph.node(parts.double))
        assert [each.id for each in graph.spec.components if each.type == "rota.input"] == ["number"]
        assert run(graph, number=4) == {"result": 8}

    def test_a_declared_input_may_have_a_default_which_may_be_none(self) -> None:
        graph = Graph("inputs")
        graph.output(graph.node(parts.join)(graph.input("first", default=None), graph.input("second", 2)))
        assert run(graph, second=3) == {"result": [None, 3]}

    def test_a_function_without_inputs_runs_once(self) -> None:
        graph = Graph("source")
        graph.output(graph.node(parts.total)(graph.node(parts.numbers)(), offset=10))
        assert run(graph) == {"result": 16}

    def test_methods_partials_lambdas_and_async_functions_are_nodes(self) -> None:
        graph = Graph("kinds")
        signed = graph.node(parts.Desk("Ann").sign)(graph.input("text"))
        number = graph.node(functools.partial(parts.total, offset=5))(graph.node(parts.numbers)())
        twice = graph.node(parts.double_async)(number)
        graph.output(signed=signed, twice=twice, same=graph.node(lambda x: x, name="copy")(twice))
        assert run(graph, text="hello") == {"signed": "hello (Ann)", "twice": 22, "same": 22}

    def test_several_outputs_go_into_one_input_as_a_list_or_by_star(self) -> None:
        graph = Graph("lists")
        doubled = [graph.node(parts.double, name=f"d{i}", number=i)() for i in range(1, 4)]
        graph.output(total=graph.node(parts.total)(doubled), parts=graph.node(parts.join)(*doubled))
        assert run(graph) == {"total": 12, "parts": [2, 4, 6]}

    def test_one_of_several_outputs_is_chosen_by_name(self) -> None:
        graph = Graph("outputs")
        split = graph.node(parts.split)(graph.node(parts.numbers)())
        graph.output(first=graph.node(parts.double)(split["head"]), others=graph.node(parts.total)(split["rest"]))
        assert run(graph) == {"first": 2, "others": 5}

    def test_a_loop_ends_after_its_maximum(self) -> None:
        graph = Graph("loop")
        graph.output(graph.loop(parts.double, max_iterations=5)(graph.input("number")))
        assert run(graph, number=1) == {"result": 32}

    def test_a_loop_ends_by_a_function_of_this_process(self) -> None:
        graph = Graph("loop")
        loop = graph.loop(parts.double, until=lambda number: number > 20, max_iterations=99)
        graph.output(loop(graph.input("number")))
        assert run(graph, number=3) == {"result": 24}

    def test_nodes_may_be_on_other_lanes(self) -> None:
        graph = Graph("lanes")
        pool = graph.lane("pool", "thread_pool", max_threads=2)
        doubled = [graph.node(parts.double, name=f"d{i}", lane=pool, number=i)() for i in range(3)]
        graph.output(graph.node(parts.total)(doubled))
        assert run(graph) == {"result": 6}


def _unknown_port(g: Graph) -> None:
    g.node(parts.double)(value=g.input("x"))


def _missing(g: Graph) -> None:
    g.node(parts.total)(offset=1)


def _mismatch(g: Graph) -> None:
    g.node(parts.double)(g.node(parts.plan_topic)(g.input("t")))


def _plain_mismatch(g: Graph) -> None:
    g.node(parts.double)("four")


def _same_name(g: Graph) -> None:
    g.node(parts.double)
    g.node(parts.double)


def _cycle(g: Graph) -> None:
    first = g.node(parts.double)
    second = g.node(parts.double, name="second")(first)
    first(second)


def _other_graph(g: Graph) -> None:
    g.node(parts.double)(Graph("other").input("x"))


def _twice(g: Graph) -> None:
    node = g.node(parts.double)(g.input("x"))
    node(g.input("y"))


def _too_many(g: Graph) -> None:
    g.node(parts.double)(g.input("x"), g.input("y"))


def _uncalled_loop(g: Graph) -> None:
    g.output(g.loop(parts.double, max_iterations=2))


def _returns_nothing(g: Graph) -> None:
    g.node(parts.double)(g.node(parts.nothing)(g.input("x")))


def _keyword_only(g: Graph) -> None:
    g.node(parts.answer)(g.node(parts.plan_topic), words=g.input("x"))


def _unknown_setting(g: Graph) -> None:
    g.node(parts.double, factor=3)


def _not_json(g: Graph) -> None:
    g.node(parts.join, config={"x": object()})


def _lambda(g: Graph) -> None:
    g.node(lambda x: x)


def _clash(g: Graph) -> None:
    g.node(parts.numbers, name="topic")()
    g.output(g.node(parts.plan_topic))
    _ = g.spec


def _no_lane(g: Graph) -> None:
    g.node(parts.double, lane="pool")


def _mixture(g: Graph) -> None:
    g.node(parts.total)([g.input("x"), 3])


def _unknown_map(g: Graph) -> None:
    g.node(parts.double, map_over="items")


def _map_mismatch(g: Graph) -> None:
    g.node(parts.double, map_over=True)(g.node(parts.plan_topic))


def _bad_execution(g: Graph) -> None:
    g.node(parts.double, execution={"on_error": "panic"})


def _local_on_queue(g: Graph) -> None:
    g.node(lambda x: x, name="same", lane=g.lane("far", "queue"))


REFUSALS = {
    _local_on_queue: "node same cannot run on a lane of type queue: it is a lambda",
    _unknown_port: "node double has no input value",
    _missing: "node total is given nothing for its input values",
    _mismatch: "input number of node double takes int, but the output of node plan_topic is list[str]",
    _plain_mismatch: "input number of node double takes int, but the value 'four' is str",
    _same_name: "two nodes of graph g have the name double",
    _cycle: "node double would wait for node second, which waits for node double: a cycle needs a loop",
    _other_graph: "input number of node double is given node x of another graph, other",
    _twice: "node double already has its inputs",
    _too_many: "node double takes 1 inputs by position, not 2",
    _uncalled_loop: "output result is given <Loop loop of g>, which is not a node",
    _returns_nothing: "node nothing returns nothing, so node double would never run",
    _keyword_only: "words of node answer is a keyword-only parameter, which is configuration",
    _unknown_setting: "node double has no parameter factor that can be set",
    _not_json: "node join has no parameter x that can be set",
    _lambda: "a lambda has no name: give the node one",
    _clash: "node plan_topic was not called, so its parameter topic is an input of the run; but a node has this name",
    _no_lane: "node double is on lane pool, which graph g does not have",
    _mixture: "input values of node total is given a mixture of nodes and plain values",
    _unknown_map: "node double cannot map over items",
    _map_mismatch: "input number of node double takes a list of int, but the output of node plan_topic is list[str]",
    _bad_execution: "node double: Invalid enum value 'panic'",
}


@pytest.mark.parametrize("build", REFUSALS, ids=lambda build: build.__name__.strip("_"))
def test_what_does_not_fit_is_refused_where_it_is_built(build: Any) -> None:
    with pytest.raises(GraphInvalid) as refused:
        build(Graph("g"))
    assert REFUSALS[build] in refused.value.message


class TestYaml:
    def test_yaml_is_the_same_graph_and_runs_the_same(self) -> None:
        graph = report()
        again = Graph.from_yaml(graph.to_yaml())
        assert again.spec == graph.spec == load_text(graph.to_yaml())
        assert again.to_yaml() == graph.to_yaml()
        assert run(again, topic="owls") == {"result": REPORT}

    def test_a_partial_with_json_values_is_a_function_with_configuration(self) -> None:
        graph = Graph("partial")
        graph.output(graph.node(functools.partial(parts.total, offset=7))(graph.node(parts.numbers)()))
        assert "config: {offset: 7}" in graph.to_yaml()
        assert run(Graph.from_yaml(graph.to_yaml())) == {"result": 13}

    def test_a_class_method_can_be_imported(self) -> None:
        graph = Graph("method")
        graph.output(graph.node(parts.Desk.empty)(graph.input("text")))
        assert run(Graph.from_yaml(graph.to_yaml()), text="x") == {"result": "x"}

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            (lambda x: x, "function <lambda> cannot be used by another process: it is a lambda"),
            (parts.Desk("Ann").sign, "function sign cannot be used by another process: it is a method of an object"),
            (
                functools.partial(parts.join, object()),
                "function join cannot be used by another process: it is a partial",
            ),
        ],
    )
    def test_a_function_that_cannot_be_imported_is_refused(self, code: Any, text: str) -> None:
        graph = Graph("local")
        graph.output(graph.node(code, name="node")(graph.input("x")))
        with pytest.raises(GraphInvalid) as refused:
            graph.to_yaml()
        assert refused.value.message.startswith(text)

    def test_a_graph_from_yaml_can_be_extended(self) -> None:
        graph = Graph.from_yaml(report().to_yaml())
        graph.output(loud=graph.node(parts.Desk.empty)(graph["write"]))
        assert run(graph, topic="owls") == {"result": REPORT, "loud": REPORT}


# --- random graphs ---------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8).filter(
    lambda name: "<" not in name
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A small graph of importable functions and agents, with loops, lists, inputs and settings."""
    graph = Graph(draw(NAMES), config=draw(st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=2)))
    names = draw(st.lists(NAMES, min_size=1, max_size=7, unique=True))
    outputs: list[Any] = [graph.input("input 1"), graph.input("input 2", draw(VALUES))]
    for name in names:
        source = st.sampled_from(outputs)
        kind = draw(st.sampled_from(["join", "list", "agent", "loop", "mapped", "plain"]))
        execution = draw(
            st.fixed_dictionaries({}, optional={"on_error": st.just("continue"), "priority": st.just("low")})
        )
        node = functools.partial(graph.node, name=f"n {name}", execution=execution)
        if kind == "join":
            outputs.append(node(parts.join)(*draw(st.lists(source, max_size=3))))
        elif kind == "list":
            outputs.append(node(parts.critic)(draw(st.lists(source, min_size=1, max_size=3))))
        elif kind == "agent":
            agent = graph.agent(
                f"agent of {name}", name=f"a {name}", config=draw(st.dictionaries(NAMES, VALUES, max_size=1))
            )
            outputs.append(agent(topic=draw(source)))
        elif kind == "loop":
            members = [graph.node(parts.critic, name=f"m {name} {i}") for i in range(draw(st.integers(1, 3)))]
            until = draw(st.sampled_from([None, parts.accepted]))
            loop = graph.loop(*members, until=until, max_iterations=draw(st.integers(1, 9)), name=f"l {name}")
            outputs.append(loop(*draw(st.lists(source, min_size=1, max_size=3))))
        elif kind == "mapped":
            outputs.append(node(parts.critic, map_over="draft")(draw(st.sampled_from(outputs[:2]))))
        else:
            outputs.append(node(parts.critic)(draw(VALUES.filter(lambda value: value is not None))))
    graph.output(draw(st.sampled_from(outputs)))
    return graph


@pytest.mark.parametrize("name", ["0E0", "1e5", ".5", "0o7", "0x1F", "-.inf", ".nan", "12", "~", "True", "null", "on"])
def test_a_name_that_looks_like_something_else_is_written_as_text(name: str) -> None:
    graph = Graph(name)
    graph.output(graph.node(parts.double, name=f"{name} ")(graph.input("number", default=name)))
    assert Graph.from_yaml(graph.to_yaml()).spec == graph.spec


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_yaml_and_back_is_the_identity(graph: Graph) -> None:
    text = graph.to_yaml()
    again = Graph.from_yaml(text)
    assert again.spec == graph.spec
    assert again.to_yaml() == text
    assert Graph.from_spec(load_text(text)).document() == graph.document()
