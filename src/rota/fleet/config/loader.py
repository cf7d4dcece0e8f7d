"""Load a fleet file and check it. A file is accepted or refused as a whole.

Each table is read by itself first (tables.py). Then names are checked: an agent's project and limits, a trigger's
agent, a command's program. `FleetInvalid` lists everything that is wrong, each with its key, what is expected there
and what was found. A refused file changes nothing.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rota.errors import FleetInvalid, PolicyInvalid, UnknownPolicy
from rota.fleet.config.agent_tables import HAS_MONEY, NAME_CHARS_MAX
from rota.fleet.config.graph_checks import read_graphs
from rota.fleet.config.hook_checks import check_event, check_hooks
from rota.fleet.config.tables import (
    SLOTS_MAX,
    WORKSPACES_MAX,
    AgentTable,
    Fleet,
    FleetFile,
    GraphTable,
    LimitTable,
    ProjectTable,
    TriggerTable,
    WorktreesTable,
)
from rota.fleet.config.units import Dollars
from rota.fleet.trigger_rules import EVERY_S_MIN, cron_problem, zone_problem
from rota.kernel.usage_windows import ALL_PROJECTS
from rota.model.checks import is_path_part
from rota.model.money import COST_DIM, USD
from rota.model.struct_reader import Problems, TomlReader, join_key
from rota.model.value_types import AnyType, TableType, closest, describe_value, struct_type
from rota.model.work import DIMENSIONS
from rota.policy import registry
from rota.service.policy_process import make_policy

__all__ = ["FILE_BYTES_MAX", "load_fleet"]

FILE_BYTES_MAX = 4 * 1024 * 1024
PERIOD_S_MIN = 0.001  # of a limit: the kernel counts milliseconds
NAME_CHARS_SHOWN = 20  # of a name that is too long
FOLDER_CHARS_MAX = 150  # of a workspace as the file writes it: its id is made from it


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """Return the fleet in a file, or raise `FleetInvalid` with everything that is wrong with the file."""
    name = os.fspath(path)
    problems = Problems()
    parsed = _parse(name)
    given = _FleetReader(problems).read_fields(struct_type(FleetFile), parsed)
    tables = FleetFile(**given)
    completed = _with_invalid_tables(tables, parsed) if problems else tables
    _check(completed, problems)
    folder = str(Path(os.path.realpath(name)).parent)
    graph_agents = read_graphs(completed, folder, problems) if completed.graphs else {}
    if not problems and tables.name is None and not Path(name).stem.isprintable():
        problems.add("name", "is required: the file's own name, which is the default, is not printable")
    if problems:
        raise _invalid(name, problems.messages(), problems.keys())
    given = {field: getattr(tables, field) for field in FleetFile.__struct_fields__}
    return Fleet(path=os.path.realpath(name), graph_agents=graph_agents, **given)


def _with_invalid_tables(tables: FleetFile, parsed: Mapping[str, Any]) -> FleetFile:
    """Return the valid tables and, for each invalid one, what is valid of it: so one look finds all problems."""

    def completed(field: str, kind: type[msgspec.Struct], instead: Mapping[str, Any]) -> dict[str, Any]:
        written, found = parsed.get(field), dict(getattr(tables, field))
        for name, table in written.items() if isinstance(written, dict) else ():
            if name not in found:
                reader, fields = _FleetReader(Problems()), table if isinstance(table, dict) else {}
                given = reader.read_fields(struct_type(kind), fields)
                try:
                    found[name] = kind(**{**instead, **given})
                except (TypeError, ValueError):  # what is left contradicts itself
                    found[name] = kind(**instead)
        return found

    return msgspec.structs.replace(
        tables,
        projects=completed("projects", ProjectTable, {}),
        limits=completed("limits", LimitTable, {"requests_per_minute": 1}),
        agents=completed("agents", AgentTable, {"command": "true"}),
        graphs=completed("graphs", GraphTable, {"file": ""}),
    )


class _FleetReader(TomlReader):
    """Reads the tables of a fleet file. Every name in it is limited, and printable unless it is a key of a payload."""

    def _read_table(self, kind: TableType, value: Mapping[str, Any]) -> Any:
        valid = {}
        for key, item in value.items():
            if 1 <= len(key) <= NAME_CHARS_MAX and (key.isprintable() or isinstance(kind.item, AnyType)):
                valid[key] = item
            else:
                self._steps.append(key[:NAME_CHARS_SHOWN])
                self._add(f"expected a name of 1 to {NAME_CHARS_MAX} printable characters")
                self._steps.pop()
        if kind.notes.get(HAS_MONEY) and USD in valid:
            self._read_money(kind, valid)
        return super()._read_table(kind, valid)

    def _read_money(self, kind: TableType, amounts: dict[str, Any]) -> None:
        """Replace `usd` by the same amount in the unit of the store."""
        written = amounts.pop(USD)
        self._steps.append(USD)
        try:
            micro = Dollars.read(written)
        except ValueError:
            self._add(f"expected {Dollars.description}, found {describe_value(written)}")
        else:
            if COST_DIM in amounts:
                self._add(f"is the same budget as {COST_DIM}; keep one of them")
            elif not kind.item.accepts(int(micro)):
                self._add(f"expected more than 0, found {describe_value(written)}")
            else:
                amounts[COST_DIM] = int(micro)
        self._steps.pop()


def _parse(path: str) -> dict[str, Any]:
    try:
        body = Path(path).read_bytes()
    except OSError as problem:
        message = f"cannot be read: {problem.strerror or problem}"
        raise _invalid(path, [message], hint="Check the path and permissions of the fleet file.") from problem
    if len(body) > FILE_BYTES_MAX:
        raise _invalid(path, [f"has {len(body):,} bytes; the maximum is {FILE_BYTES_MAX:,}"])
    try:
        return tomllib.loads(body.decode())
    except UnicodeDecodeError as problem:
        raise _invalid(path, [f"is not valid UTF-8 at byte {problem.start:,}"]) from problem
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise _invalid(path, [f"is not valid TOML: {problem}"]) from problem


def _invalid(
    path: str,
    messages: list[str],
    keys: list[str] | None = None,
    hint: str = "Correct the file; nothing was changed.",
) -> FleetInvalid:
    """The error for a file, with all its problems."""
    text = messages[0] if len(messages) == 1 else f"{len(messages)} problems\n  " + "\n  ".join(messages)
    return FleetInvalid(
        f"{path}: {text}",
        field=keys[0] if keys else None,
        hint=hint if len(messages) == 1 else "",
        file=path,
        problems=messages,
        keys=keys or [],
    )


# --- checks across tables --------------------------------------------------------------------------


def _check(fleet: FleetFile, problems: Problems) -> None:
    _check_policy(fleet, problems)
    _check_scheduling(fleet, problems)
    _check_dimensions(fleet, problems)
    folders: dict[str, str] = {}  # each workspace's folder, and the key that names it
    for name, project in fleet.projects.items():
        _check_project(name, project, folders, problems)
    for name, limit in fleet.limits.items():
        for unit, budget in limit.budgets.items():
            if budget.period_s < PERIOD_S_MIN:
                problems.add(
                    f"{join_key('limits', name)}.{unit}.period_s",
                    f"expected at least {PERIOD_S_MIN} seconds, found {budget.period_s:g}",
                )
    for name, agent in fleet.agents.items():
        _check_agent(fleet, agent, join_key("agents", name), problems)
    for name, graph in fleet.graphs.items():
        for at, trigger in enumerate(graph.triggers):
            _check_trigger(fleet, trigger, f"{join_key('graphs', name)}.triggers[{at}]", problems)
    check_hooks(fleet, problems)


def _check_policy(fleet: FleetFile, problems: Problems) -> None:
    try:
        make_policy(fleet.policy_name, fleet.policy_params, fleet.policy_isolation)
    except UnknownPolicy:
        problems.add_unknown_name("policy", "policy", fleet.policy_name, registry.names())
    except PolicyInvalid as problem:
        problems.add("policy.params", f"{problem.message}. {problem.hint}".rstrip("."))
    except Exception as problem:  # a policy of another package may raise anything; report it as a problem of the file
        problems.add("policy", f"{fleet.policy_name} could not be created: {type(problem).__name__}: {problem}")


def _check_scheduling(fleet: FleetFile, problems: Problems) -> None:
    wrong_keys = problems.keys()
    if not any(key.startswith("slots") for key in wrong_keys) and not 1 <= len(fleet.slot_kinds) <= SLOTS_MAX:
        problems.add("slots", f"expected 1 to {SLOTS_MAX:,} slots in total, found {len(fleet.slot_kinds):,}")
    preemption = fleet.scheduling.preemption
    if preemption is not None and list(preemption.bands) != sorted(set(preemption.bands)):
        problems.add("scheduling.preemption.bands", f"expected ascending numbers, found {list(preemption.bands)}")


def _check_dimensions(fleet: FleetFile, problems: Problems) -> None:
    """A budget in a dimension that is never charged would limit nothing."""
    known = {*DIMENSIONS, *fleet.dimensions}
    tables = {"scheduling.budget": fleet.scheduling.budget}
    tables |= {f"{join_key('projects', name)}.budget": table.budget for name, table in fleet.projects.items()}
    tables |= {f"{join_key('graphs', name)}.budget": table.budget for name, table in fleet.graphs.items()}
    for name, agent in fleet.agents.items():
        for field in ("budget", "expected", "ceiling"):
            tables[f"{join_key('agents', name)}.{field}"] = getattr(agent, field)
    for key, amounts in tables.items():
        for dim in amounts:
            if dim not in known:
                similar = closest(dim, known)
                hint = f"did you mean {similar!r}?" if similar else f"declare it: dimensions = [{dim!r}]"
                problems.add(join_key(key, dim), f"unknown dimension {dim!r}; {hint}")


def _check_project(name: str, project: ProjectTable, folders: dict[str, str], problems: Problems) -> None:
    path = join_key("projects", name)
    if name == ALL_PROJECTS:
        problems.add(path, f"the name {ALL_PROJECTS!r} is reserved for all projects together; choose another name")
    if not isinstance(project.workspaces, tuple):
        branch = project.workspaces.branch
        if branch.startswith("-"):  # git would parse it as an option
            problems.add_mismatch(f"{path}.workspaces.branch", "a branch, a tag or a commit", branch)
        for field, problem in project.workspaces.problems():
            problems.add(f"{path}.workspaces.{field}", problem)
        if project.workspaces.folder is None and not is_path_part(name):
            problems.add(path, "worktrees are in a folder of this name: no / and no dot at its start, or give a folder")
        return
    if len(project.workspaces) > WORKSPACES_MAX:
        problems.add(f"{path}.workspaces", f"expected at most {WORKSPACES_MAX} items, found {len(project.workspaces)}")
    for at, written in enumerate(project.workspaces):
        key, folder = f"{path}.workspaces[{at}]", os.path.normpath(written)
        if not 1 <= len(written) <= FOLDER_CHARS_MAX:
            problems.add(key, f"expected a folder of 1 to {FOLDER_CHARS_MAX} characters, found {len(written)}")
        elif folder in folders:
            problems.add(key, f"{written!r} is already {folders[folder]}; a folder can be one workspace only")
        folders.setdefault(folder, key)


def _check_agent(fleet: FleetFile, agent: AgentTable, path: str, problems: Problems) -> None:
    _check_names(fleet, agent, path, problems)
    _check_program(agent, path, problems)
    _check_environment(agent, path, problems)
    for at, trigger in enumerate(agent.triggers):
        _check_trigger(fleet, trigger, f"{path}.triggers[{at}]", problems)
    for dim, ceiling in agent.ceiling.items():
        if agent.expected.get(dim, 0) > ceiling:
            problems.add(
                join_key(f"{path}.expected", dim),
                f"expected at most {ceiling:,}, the ceiling of a run, found {agent.expected[dim]:,}",
            )


def _check_names(fleet: FleetFile, agent: AgentTable, path: str, problems: Problems) -> None:
    project = fleet.projects.get(agent.project) if agent.project is not None else None
    if agent.project is not None and project is None:
        problems.add_unknown_name(f"{path}.project", "project", agent.project, fleet.projects)
    if agent.workspace is not None and agent.project is None:
        problems.add(f"{path}.workspace", f"requires {path}.project: workspaces belong to projects")
    elif agent.project is not None and agent.workspace is not None and project is not None and not project.workspaces:
        key = f"{join_key('projects', agent.project)}.workspaces"
        problems.add(f"{path}.workspace", f"requires {key}: project {agent.project!r} has no workspaces")
    elif agent.workspace == "shared" and project is not None and _prepares_worktrees(project):
        problems.add(f"{path}.workspace", 'expected "exclusive": these worktrees are prepared for one run')
    for at, name in enumerate(agent.draws_on):
        if name not in fleet.limits:
            problems.add_unknown_name(f"{path}.draws_on[{at}]", "limit", name, fleet.limits)


def _prepares_worktrees(project: ProjectTable) -> bool:
    """Whether the project's worktrees are prepared for each run."""
    return isinstance(project.workspaces, WorktreesTable) and project.workspaces.is_managed


def _check_program(agent: AgentTable, path: str, problems: Problems) -> None:
    if agent.function is not None:
        module, colon, name = agent.function.partition(":")
        parts = [*module.split("."), *name.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            problems.add_mismatch(f"{path}.function", '"module:name"', agent.function)
        return
    key = f"{path}.{'command' if agent.command is not None else 'ndjson'}"
    written = agent.command if agent.command is not None else agent.ndjson
    try:
        argv = shlex.split(written) if isinstance(written, str) else list(written or ())
    except ValueError as problem:
        problems.add(key, f"cannot be split into arguments: {str(problem).lower()}")
        return
    if not argv or not argv[0]:
        found = written if isinstance(written, str) else list(written or ())
        problems.add_mismatch(key, "a program and its arguments", found)
    elif any("\0" in part for part in argv):
        problems.add(key, "expected arguments without a NUL character")


def _check_environment(agent: AgentTable, path: str, problems: Problems) -> None:
    for name, value in agent.env.items():
        if "=" in name or "\0" in name + value:
            problems.add(
                join_key(f"{path}.env", name),
                "expected a variable name without = and NUL characters, and a value without NUL characters",
            )
    for limit in ("wall_s", "cpu_s", "memory"):
        if getattr(agent.limits, limit) == 0:
            problems.add(f"{path}.limits.{limit}", "expected more than 0, found 0: no run could start")


def _check_trigger(fleet: FleetFile, table: TriggerTable, path: str, problems: Problems) -> None:
    trigger = table.trigger
    if trigger.cron is not None and (problem := cron_problem(trigger.cron)):
        problems.add(f"{path}.cron", f"expected a cron expression, found {describe_value(trigger.cron)}: {problem}")
    if problem := zone_problem(trigger.zone):
        problems.add(f"{path}.zone", problem)
    if trigger.every_s is not None and trigger.every_s < EVERY_S_MIN:
        key = "every" if table.every is not None else "every_s"
        problems.add(f"{path}.{key}", f"expected at least {EVERY_S_MIN:g} second, found {trigger.every_s:g}")
    if trigger.after is not None and trigger.after not in (known := {**fleet.agents, **fleet.graphs}):
        problems.add_unknown_name(f"{path}.after", "agent", trigger.after, known)
    if trigger.event is not None:
        check_event(trigger.event, f"{path}.event", problems)
    if trigger.event_as is not None and trigger.kind not in ("event", "after"):
        problems.add(f"{path}.event_as", "is only valid with event or after: other triggers have no event to pass on")
