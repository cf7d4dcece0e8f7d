"""Reading and checking the graphs of a fleet file. Every problem of every graph is reported, with its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rota import graph
from rota.errors import GraphInvalid, InvalidInput
from rota.fleet.config.functions import import_problem
from rota.fleet.config.graph_tables import GraphAgent, GraphTable
from rota.fleet.config.tables import Fleet, FleetFile
from rota.fleet.hook_rules import HOOK_PREFIX
from rota.model.checks import PAYLOAD_BYTES_MAX
from rota.model.struct_reader import Problems, join_key
from rota.model.value_types import closest

__all__ = ["graph_warnings", "read_graphs"]

DOCUMENT_BYTES_MAX = PAYLOAD_BYTES_MAX - 4_096  # of a graph in a fleet file: it is stored in the metadata of its agent


def read_graphs(fleet: FleetFile, folder: str, problems: Problems) -> dict[str, GraphAgent]:
    """Return the graphs of a file that can be used; adds what is wrong with the others."""
    found: dict[str, GraphAgent] = {}
    for name, table in fleet.graphs.items():
        path = join_key("graphs", name)
        _check_table(fleet, name, table, path, problems)
        if not table.file:  # the table was refused
            continue
        if (agent := _read(fleet, name, table, Path(folder, table.file), problems)) is not None:
            found[name] = agent
    return found


def _check_table(fleet: FleetFile, name: str, table: GraphTable, path: str, problems: Problems) -> None:
    if name in fleet.agents:
        problems.add(path, f"{join_key('agents', name)} has the same name; a graph is an agent of its name: rename one")
    if name.startswith(HOOK_PREFIX):
        problems.add(path, f"the names of hooks begin with {HOOK_PREFIX!r}; choose another name")
    if table.project is not None and table.project not in fleet.projects:
        problems.add_unknown_name(f"{path}.project", "project", table.project, fleet.projects)


def _read(fleet: FleetFile, name: str, table: GraphTable, file: Path, problems: Problems) -> GraphAgent | None:
    key = f"{join_key('graphs', name)}.file"
    try:
        document = graph.read_mapping(file)
        read = graph.read_stored(document)
    except GraphInvalid as problem:
        if not problem.diagnostics:
            problems.add(key, f"{table.file}: {problem.message}")
        for each in problem.diagnostics:
            problems.add(_place(key, table, each.graph_path), each.message)
        return None
    for each in read.diagnostics:
        if each.is_error:
            problems.add(_place(key, table, each.graph_path), each.message)
    for node, agent in read.agents:
        if agent not in fleet.agents and agent not in fleet.graphs:
            similar = closest(agent, {*fleet.agents, *fleet.graphs})
            hint = f"did you mean {similar!r}?" if similar else "it must be an agent of this file"
            problems.add(_place(key, table, f"components.{node}"), f"there is no agent {agent!r}; {hint}")
    size = len(msgspec.json.encode(document))
    if size > DOCUMENT_BYTES_MAX:
        problems.add(key, f"{table.file} has {size:,} bytes as JSON; the maximum is {DOCUMENT_BYTES_MAX:,}")
    _check_inputs(read, table, key, problems)
    try:
        budgets = read.lines(table.budget)
    except ValueError:  # its diagnostics have said so
        budgets = {}
    return GraphAgent(name, table, document, budgets)


def _place(key: str, table: GraphTable, path: str) -> str:
    """Return the key of a problem inside a graph file: of several at one place, only the first is reported."""
    return f"{key}: {table.file}, {path}" if path else f"{key}: {table.file}"


def _check_inputs(read: Any, table: GraphTable, key: str, problems: Problems) -> None:
    """Refuse values for inputs that the graph does not have. A missing value may still come with a trigger."""
    path = key.removesuffix(".file")
    given: list[tuple[str, Mapping[str, Any]]] = [(f"{path}.inputs", table.inputs)]
    given += [(f"{path}.triggers[{at}].payload", each.payload) for at, each in enumerate(table.triggers)]
    for where, values in given:
        for name in values:
            try:
                read.check_input(name)
            except InvalidInput as problem:
                problems.add(join_key(where, name), f"{problem.message}. {problem.hint}".rstrip("."))


# --- warnings ------------------------------------------------------------------------------------


def graph_warnings(fleet: Fleet) -> Iterator[str]:
    """Yield what is valid in the graphs of a fleet and probably a mistake."""
    for name, agent in fleet.graph_agents.items():
        key, read = join_key("graphs", name), graph.read_stored(agent.document)
        for each in read.spec.components:
            if not each.execution.agent and ":" in each.type and (problem := import_problem(each.type, fleet.folder)):
                yield f"{key}.file: component {each.id}: {problem}, so its runs fail"
        for node, named in read.agents:
            other = fleet.agents.get(named) or fleet.graphs.get(named)
            if other is not None and other.project != agent.project:
                wall = " ".join(project or "-" for project in (agent.project, other.project))
                yield (
                    f"{key}.file: component {node}: agent {named} is of another project, which its runs may not reach "
                    f"without a grant: rota projects grant {wall}"
                )
        for missing in read.missing_inputs(agent.table.inputs):
            if not agent.triggers:
                continue
            if any(missing not in each.payload and each.event_as != missing for each in agent.triggers):
                yield f"{key}.inputs: no value for input {missing!r}: runs that a trigger starts without it will fail"
