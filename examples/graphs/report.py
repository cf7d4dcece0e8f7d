"""A graph of agents in Python: plan, a researcher for each question, a critic loop, a writer. It needs no keys.

python examples/graphs/report.py            # runs it, and prints the report and what each node did
python examples/graphs/report.py --yaml     # prints the graph as a file: examples/graphs/report.yaml
"""

from __future__ import annotations

import sys

import report_steps as steps

from rota import Graph, Rota


def build(rota: Rota) -> Graph:
    """Return the graph; the researcher becomes an agent of this rota."""
    researcher = rota.agent("researcher", budget={"tokens": 1_000})(steps.researcher)
    graph = rota.graph("report", budget={"tokens": 500})
    questions = graph.node(steps.plan_topic)  # its parameter, topic, is an input of the run
    found = graph.node(researcher, map_over="question", words=8)(questions)  # an entry for each question
    draft = graph.loop(steps.critic, steps.revise, until=steps.accepted, max_iterations=4)(found)
    graph.output(graph.node(steps.write)(draft, title="Tides"))
    return graph


def main() -> None:
    """Print the graph as YAML, or run it."""
    with Rota() as rota:
        graph = build(rota)
        if "--yaml" in sys.argv:
            print(graph.to_yaml(), end="")
            return
        run = rota.run_graph(graph, inputs={"topic": "tides"})
        print(run.result(wait_s=60))
        for node in run.nodes():
            used = f"  {node.usage['tokens']} tokens" if node.usage else ""
            print(f"  {node.node:<12} {node.state}{used}")


if __name__ == "__main__":
    main()
