"""Graph runs in Python: where a run lives, what its handle does, behind every door."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rota import Graph, Rota
from rota.app.graph_runs import GraphRunHandle
from rota.errors import GraphInvalid, GraphRunFailed, GraphRunRefused, InvalidInput, WaitTimeout
from rota.graph import GraphContext
from tests.daemon.harness import serving
from tests.graph import report_parts as parts

PATIENCE_S = 60.0


def of_agents(rota: Rota, name: str = "agents") -> Graph:
    """plan → three researchers → critic loop → write; the researchers are agents."""

    @rota.agent
    def researcher(ctx: Any, questions: list[str], which: int) -> str:
        ctx.charge(tokens=10)
        return questions[which]

    graph = Graph(name)
    plan = graph.node(parts.plan_topic)
    found = [graph.node(researcher, name=f"r{i}", which=i)(plan) for i in range(3)]
    draft = graph.loop(parts.critic, parts.revise, until=parts.accepted, max_iterations=4)(*found)
    graph.output(graph.node(parts.write)(draft))
    return graph


REPORT = "Report: past of owls; present of owls; future of owls (revised 3 times)"


class TestInThisProgram:
    def test_a_graph_of_functions_runs_without_the_store(self) -> None:
        with Rota() as rota:
            graph = rota.graph("doubled")
            graph.output(graph.node(parts.double))
            run = rota.run_graph(graph, {"number": 4})
            assert run.result(PATIENCE_S) == 8
            assert run.status == "succeeded"
            assert {node.node: node.state for node in run.nodes()}["double"] == "succeeded"
            assert rota.api.graphs.list() == ([], 0)

    def test_a_graph_is_given_as_text_as_a_file_or_as_a_mapping(self, tmp_path: Path) -> None:
        graph = Graph("doubled")
        graph.output(twice=graph.node(parts.double))
        path = tmp_path / "doubled.yaml"
        path.write_text(graph.to_yaml())
        with Rota() as rota:
            for given in (graph.to_yaml(), path, str(path), graph.document(), graph.spec):
                assert rota.run_graph(given, {"number": 4}).result(PATIENCE_S) == {"twice": 8}

    def test_a_failure_is_raised_with_the_node_that_failed(self) -> None:
        def breaks(number: int) -> int:
            raise ValueError(f"no {number}")

        graph = Graph("broken")
        graph.output(graph.node(breaks))
        with Rota() as rota:
            run = rota.run_graph(graph, {"number": 4}, wait_s=None)
            assert run.status == "failed"
            with pytest.raises(GraphRunFailed, match=r"breaks.*ValueError: no 4"):
                run.result()

    def test_inputs_are_checked_before_anything_runs(self) -> None:
        graph = Graph("doubled")
        graph.output(graph.node(parts.double))
        with Rota() as rota:
            for inputs, text in (({}, "needs a value for its input 'number'"), ({"n": 1}, "has no input 'n'")):
                with pytest.raises(InvalidInput, match=text):
                    rota.run_graph(graph, inputs)
            with pytest.raises(InvalidInput, match="runs in this program, where project has no effect"):
                rota.run_graph(graph, {"number": 4}, project="research")

    def test_a_budget_is_for_one_run(self) -> None:
        def spends(context: GraphContext, tokens: int) -> int:
            return context.charge(tokens=tokens)["tokens"]

        with Rota() as rota:
            graph = rota.graph("spending", budget={"tokens": 100})
            graph.output(graph.node(spends, name="again")(tokens=graph.node(spends)))
            assert rota.run_graph(graph, {"tokens": 40}).result(PATIENCE_S) == 0
            run = rota.run_graph(graph, {"tokens": 40}, budget={"tokens": 30})
            with pytest.raises(GraphRunFailed, match="tokens"):
                run.result(PATIENCE_S)

    def test_a_run_is_waited_for_and_cancelled(self) -> None:
        began, gate = threading.Event(), threading.Event()

        def waits(number: int) -> int:
            began.set()
            assert gate.wait(PATIENCE_S)
            return number

        graph = Graph("waiting")
        graph.output(graph.node(parts.double)(graph.node(waits)))
        with Rota() as rota:
            run = rota.run_graph(graph, {"number": 4}, wait_s=0.01)
            assert began.wait(PATIENCE_S)
            assert run.status == "running"
            with pytest.raises(WaitTimeout, match=f"graph run {run.run_id} has not ended after 0.01 s"):
                run.wait(0.01)
            with pytest.raises(GraphRunRefused, match="cannot be resumed"):
                run.resume()
            run.cancel()
            gate.set()
            assert run.wait(PATIENCE_S) == "cancelled"
            with pytest.raises(GraphRunFailed, match="ended cancelled"):
                run.result()


class TestWithAgents:
    def test_result_runs_the_entries_if_nothing_else_does(self) -> None:
        with Rota() as rota:
            run = rota.run_graph(of_agents(rota), {"topic": "owls"})
            assert run.result(PATIENCE_S) == REPORT
            assert [each.status for each in rota.api.graphs.list()[0]] == ["succeeded"]
            agent = rota.find("researcher").pid
            assert rota.api.queue.list(pid=agent)[1] == 3
            states = {node.node: (node.state, node.usage) for node in run.nodes()}
            assert states["r0"] == ("succeeded", {"tokens": 10})

    def test_it_is_the_same_behind_every_door(self, anywhere: Rota) -> None:
        graph = of_agents(anywhere)

        async def program() -> list[Any]:
            running = asyncio.create_task(anywhere.arun(2))
            run = await anywhere.arun_graph(graph, {"topic": "owls"}, run_id="monday")
            again = await anywhere.arun_graph(graph, {"topic": "owls"}, run_id="monday")
            found = [await run, again.run_id, await run.astatus(), await anywhere.graph_run("monday").await_end()]
            running.cancel()
            await asyncio.wait([running])
            return found

        assert asyncio.run(program()) == [REPORT, "monday", "succeeded", "succeeded"]

    def test_functions_of_this_process_are_coordinated_here(self) -> None:
        with Rota() as rota:

            @rota.agent
            def researcher(topic: str) -> str:
                return f"all about {topic}"

            graph = rota.graph("local")
            found = graph.node(researcher)
            graph.output(graph.node(lambda text: text.upper(), name="shout")(found))
            run = rota.run_graph(graph, {"topic": "owls"}, run_id="local run")
            assert run.result(PATIENCE_S) == "ALL ABOUT OWLS"
            shown = rota.api.graphs.show("local run")
            assert shown.run.status == "succeeded"
            assert [(node.node, node.agent) for node in shown.nodes] == [("researcher", "researcher")]

    def test_a_run_of_a_program_that_ended_goes_on_under_its_name(self, tmp_path: Path) -> None:
        def start(rota: Rota) -> GraphRunHandle:
            graph = rota.graph("local")
            doubled = graph.node(rota.agent("doubler")(parts.double))
            graph.output(graph.node(lambda number: number + 1, name="next")(doubled))
            return rota.run_graph(graph, {"number": 3}, run_id="mine")

        with Rota(tmp_path / "rota.db") as rota:
            changed = threading.Event()
            rota.kernel.store.on_change(changed.set)
            start(rota)
            while rota.api.queue.list()[1] == 0:  # until its entry is there; nothing runs it
                assert changed.wait(PATIENCE_S)
                changed.clear()
        with Rota(tmp_path / "rota.db") as rota:
            assert start(rota).result(PATIENCE_S) == 7
            assert rota.api.queue.list()[1] == 1

    def test_a_run_is_in_the_project_of_its_agents(self) -> None:
        with Rota() as rota:
            searchers = [rota.agent(f"searcher {project}", project=project)(parts.double) for project in ("one", "two")]
            for code in (parts.double, lambda number: 2 * number):
                graph = rota.graph("projects")
                graph.output(graph.node(code, name="again")(graph.node(searchers[0], name="first")))
                run = rota.run_graph(graph, {"number": 3})
                assert run.result(PATIENCE_S) == 12
                assert rota.api.graphs.show(run.run_id).run.project_id == "one"
            graph.node(searchers[1], name="second")(4)
            with pytest.raises(InvalidInput, match="are in several projects: one, two"):
                rota.run_graph(graph, {"number": 3})

    def test_functions_of_this_process_are_refused_at_a_daemon(self, tmp_path: Path) -> None:
        graph = Graph("local")
        graph.output(graph.node(lambda text: text, name="same")(graph.agent("researcher")(topic="owls")))
        with (
            serving(str(tmp_path / "rota.db"), http=False) as served,
            Rota(served.unix) as rota,
            pytest.raises(GraphInvalid, match="function <lambda> cannot be used by another process"),
        ):
            rota.run_graph(graph)

    def test_a_stored_run_is_cancelled_and_its_entries_do_not_run(self) -> None:
        with Rota() as rota:
            run = rota.run_graph(of_agents(rota), {"topic": "owls"})
            run.cancel()
            assert run.wait(PATIENCE_S) == "cancelled"
            assert rota.run(until_idle=True).runs == 0
            run.resume()
            assert run.result(PATIENCE_S) == REPORT

    def test_types_of_agents_are_checked_from_their_functions(self) -> None:
        with Rota() as rota:

            @rota.agent
            def researcher(ctx: Any, topic: str) -> str:  # noqa: ARG001  # not an input
                return topic

            graph = rota.graph("types")
            with pytest.raises(GraphInvalid, match=r"input number of node double takes int, but .* researcher is str"):
                graph.node(parts.double)(graph.node(researcher)(graph.input("topic")))
            with pytest.raises(GraphInvalid, match="node again has no input subject"):
                graph.node(researcher, name="again")(subject="owls")


class TestFanOutOverAgents:
    @staticmethod
    def graph(rota: Rota, searcher: Any, **execution: Any) -> Graph:
        graph = rota.graph("searches")
        found = graph.node(searcher, name="each", map_over="question", execution=execution)(graph.input("questions"))
        graph.output(graph.node(parts.join)(found))
        return graph

    def test_every_item_is_an_entry_of_its_own(self) -> None:
        with Rota() as rota:

            @rota.agent
            def searcher(ctx: Any, question: str) -> str:
                ctx.charge(tokens=len(question))
                return f"{question}!"

            run = rota.run_graph(self.graph(rota, searcher), {"questions": ["a", "bb", "ccc"]}, run_id="mapped")
            assert run.result(PATIENCE_S) == [["a!", "bb!", "ccc!"]]
            entries = sorted(rota.api.queue.list(pid=searcher.pid)[0], key=lambda entry: entry.sched_id)
            assert [entry.payload for entry in entries] == [{"question": each} for each in ("a", "bb", "ccc")]
            assert rota.run_graph(self.graph(rota, searcher), {"questions": []}).result(PATIENCE_S) == [[]]

    def test_an_item_that_fails_is_none_or_ends_the_run(self) -> None:
        with Rota() as rota:

            @rota.agent(max_attempts=1)
            def searcher(question: str) -> str:
                if question == "b":
                    raise ValueError("no answer")
                return question.upper()

            inputs = {"questions": ["a", "b", "c"]}
            run = rota.run_graph(self.graph(rota, searcher, on_error="continue"), inputs)
            assert run.result(PATIENCE_S) == [["A", None, "C"]]
            run = rota.run_graph(self.graph(rota, searcher), inputs)
            with pytest.raises(GraphRunFailed, match=r"each.*no answer"):
                run.result(PATIENCE_S)

    def test_a_run_that_was_interrupted_goes_on_with_the_items_that_are_left(self, tmp_path: Path) -> None:
        path, called = tmp_path / "rota.db", list[str]()

        def start(rota: Rota) -> Graph:
            @rota.agent
            def searcher(question: str) -> str:
                called.append(question)
                if len(called) == 2:
                    rota.stop()
                return question.upper()

            return self.graph(rota, searcher)

        with Rota(path) as rota:
            rota.run_graph(start(rota), {"questions": ["a", "b", "c", "d"]}, run_id="long")
            rota.run(1)
            assert rota.graph_run("long").status in ("running", "waiting")
        with Rota(path) as rota:
            start(rota)
            assert rota.graph_run("long").result(PATIENCE_S) == [["A", "B", "C", "D"]]
        assert sorted(called) == ["a", "b", "c", "d"]

    def test_functions_on_a_queue_lane_are_mapped_over_too(self) -> None:
        with Rota() as rota:
            graph = rota.graph("far")
            far = graph.lane("far", "queue")
            doubled = graph.node(parts.double, lane=far, map_over=True)(graph.node(parts.numbers)())
            graph.output(graph.node(parts.total)(doubled))
            run = rota.run_graph(graph)
            assert run.result(PATIENCE_S) == 12
            assert {node.node: node.agent for node in run.nodes()}["double"] == "far", "its entries are the graph's"
