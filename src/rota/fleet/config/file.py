"""Reading a fleet file: taken whole, or refused whole.

First each table by itself (see tables.py for what there is), then what names what: an agent its project and its
limits, a trigger its agent, a command its program. `FleetInvalid` says all that is wrong at once, each with its key,
what was expected there and what was found; nothing is changed by a file that is refused.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path
from typing import Any

from rota.errors import FleetInvalid, PolicyInvalid, UnknownPolicy
from rota.fleet.config.reader import MISSING, Problems, dotted, found, read
from rota.fleet.config.tables import SLOTS_MAX, AgentTable, Fleet, FleetFile, ProjectTable, TriggerTable
from rota.fleet.trigger_times import EVERY_S_LEAST, cron_problem, zone_problem
from rota.kernel.usage_windows import EVERYBODY
from rota.policy import registry

__all__ = ["FILE_BYTES_MAX", "load"]

FILE_BYTES_MAX = 4 * 1024 * 1024
PERIOD_S_LEAST = 0.001  # of a limit: the kernel counts milliseconds
FOLDER_CHARS_MAX = 150  # of a workspace, as the file says it: its id is made of it
WORKSPACES_MAX = 256  # of one project
# Every firing of a trigger writes these, so a trigger on one of them would fire for ever.
ECHOES = ("kernel.trigger.fired", "kernel.sched.enqueued")


def load(path: str | os.PathLike[str]) -> Fleet:
    """The fleet in a file, or `FleetInvalid` with all that is wrong with it."""
    name = os.fspath(path)
    problems = Problems()
    tables = read(FleetFile, _tables(name), "", problems)
    if tables is not MISSING:
        _check(tables, problems)
    if problems:
        raise _refusal(name, problems.sentences(), problems.keys())
    given = {field: getattr(tables, field) for field in FleetFile.__struct_fields__}
    return Fleet(path=os.path.realpath(name), **given)


def _tables(path: str) -> dict[str, Any]:
    try:
        body = Path(path).read_bytes()
    except OSError as problem:
        raise _refusal(path, [f"cannot be read: {problem.strerror or problem}"]) from problem
    if len(body) > FILE_BYTES_MAX:
        raise _refusal(path, [f"is {len(body):,} bytes long; at most {FILE_BYTES_MAX:,} are read"])
    try:
        return tomllib.loads(body.decode())
    except UnicodeDecodeError as problem:
        raise _refusal(path, [f"is not UTF-8 at byte {problem.start:,}"]) from problem
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise _refusal(path, [f"is not TOML: {problem}"]) from problem


def _refusal(path: str, sentences: list[str], keys: list[str] | None = None) -> FleetInvalid:
    """The error for a file, with all that is wrong with it."""
    told = sentences[0] if len(sentences) == 1 else f"{len(sentences)} problems\n  " + "\n  ".join(sentences)
    return FleetInvalid(
        f"{path}: {told}",
        field=keys[0] if keys else None,
        hint="Correct the file; nothing was changed." if len(sentences) == 1 else "",
        file=path,
        problems=sentences,
        keys=keys or [],
    )


# --- what names what -------------------------------------------------------------------------------


def _check(fleet: FleetFile, problems: Problems) -> None:
    _check_policy(fleet, problems)
    _check_scheduling(fleet, problems)
    places: dict[str, str] = {}  # a folder, and the key that named it
    for name, project in fleet.projects.items():
        _check_project(name, project, places, problems)
    for name, limit in fleet.limits.items():
        for unit, ration in limit.rations.items():
            if ration.period_s < PERIOD_S_LEAST:
                problems.say(
                    f"{dotted('limits', name)}.{unit}.period_s",
                    f"expected at least {PERIOD_S_LEAST} seconds, found {ration.period_s:g}",
                )
    for name, agent in fleet.agents.items():
        _check_agent(fleet, agent, dotted("agents", name), problems)


def _check_policy(fleet: FleetFile, problems: Problems) -> None:
    try:
        registry.make(fleet.policy_name, **fleet.policy_params)
    except UnknownPolicy:
        problems.unknown("policy", "policy", fleet.policy_name, registry.names())
    except PolicyInvalid as problem:
        problems.say("policy.params", f"{problem.message}. {problem.hint}".rstrip("."))
    except Exception as problem:  # another package's: whatever it raises, the file is what can be corrected
        problems.say("policy", f"{fleet.policy_name} cannot be made: {type(problem).__name__}: {problem}")


def _check_scheduling(fleet: FleetFile, problems: Problems) -> None:
    if not 1 <= len(fleet.slot_kinds) <= SLOTS_MAX:
        problems.say("slots", f"expected 1 to {SLOTS_MAX:,} slots in all, found {len(fleet.slot_kinds):,}")
    preemption = fleet.scheduling.preemption
    if preemption is not None and list(preemption.bands) != sorted(set(preemption.bands)):
        problems.say("scheduling.preemption.bands", f"expected rising numbers, found {preemption.bands}")


def _check_project(name: str, project: ProjectTable, places: dict[str, str], problems: Problems) -> None:
    path = dotted("projects", name)
    if name == EVERYBODY:
        problems.say(path, f"a project cannot be called {EVERYBODY!r}: that is everybody")
    if not isinstance(project.workspaces, tuple):
        branch = project.workspaces.branch
        if branch.startswith("-"):  # git would take it for an option
            problems.say(f"{path}.workspaces.branch", f"expected a branch, a tag or a commit, found {found(branch)}")
        return
    if len(project.workspaces) > WORKSPACES_MAX:
        problems.say(f"{path}.workspaces", f"may hold at most {WORKSPACES_MAX}, found {len(project.workspaces)}")
    for at, folder in enumerate(project.workspaces):
        key, place = f"{path}.workspaces[{at}]", os.path.normpath(folder)
        if not 1 <= len(folder) <= FOLDER_CHARS_MAX:
            problems.say(key, f"expected a folder of 1 to {FOLDER_CHARS_MAX} characters, found {len(folder)}")
        elif place in places:
            problems.say(key, f"{folder!r} is {places[place]} already; a workspace belongs to one project")
        places.setdefault(place, key)


def _check_agent(fleet: FleetFile, agent: AgentTable, path: str, problems: Problems) -> None:
    _check_names(fleet, agent, path, problems)
    _check_how(agent, path, problems)
    _check_surroundings(agent, path, problems)
    for at, trigger in enumerate(agent.triggers):
        _check_trigger(fleet, trigger, f"{path}.triggers[{at}]", problems)
    for dim, most in agent.ceiling.items():
        if agent.expected.get(dim, 0) > most:
            problems.say(
                dotted(f"{path}.expected", dim), f"({agent.expected[dim]:,}) is above the run's ceiling ({most:,})"
            )


def _check_names(fleet: FleetFile, agent: AgentTable, path: str, problems: Problems) -> None:
    project = fleet.projects.get(agent.project) if agent.project is not None else None
    if agent.project is not None and project is None:
        problems.unknown(f"{path}.project", "project", agent.project, fleet.projects)
    if agent.workspace is not None and agent.project is None:
        problems.say(f"{path}.workspace", "needs a project: workspaces belong to projects")
    elif agent.workspace is not None and project is not None and not project.workspaces:
        problems.say(f"{path}.workspace", f"project {agent.project!r} has no workspaces")
    for at, name in enumerate(agent.draws_on):
        if name not in fleet.limits:
            problems.unknown(f"{path}.draws_on[{at}]", "limit", name, fleet.limits)


def _check_how(agent: AgentTable, path: str, problems: Problems) -> None:
    if agent.function is not None:
        module, colon, name = agent.function.partition(":")
        parts = [*module.split("."), *name.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            problems.say(f"{path}.function", f'expected "module:name", found {found(agent.function)}')
        return
    key = f"{path}.{'command' if agent.command is not None else 'ndjson'}"
    said = agent.command if agent.command is not None else agent.ndjson
    try:
        argv = shlex.split(said) if isinstance(said, str) else list(said or ())
    except ValueError as problem:
        problems.say(key, f"cannot be split into words: {str(problem).lower()}")
        return
    if not argv or not argv[0]:
        problems.unfit(key, "a program to start", said if isinstance(said, str) else list(said or ()))
    elif any("\0" in part for part in argv):
        problems.say(key, "expected texts without a NUL character")


def _check_surroundings(agent: AgentTable, path: str, problems: Problems) -> None:
    for name, value in agent.env.items():
        if "=" in name or "\0" in name + value:
            problems.say(
                dotted(f"{path}.env", name), "a name cannot hold = and neither it nor its value a NUL character"
            )
    for limit in ("wall_s", "cpu_s", "memory"):
        if getattr(agent.limits, limit) == 0:
            problems.say(f"{path}.limits.{limit}", "expected more than 0, found 0: no run could begin")


def _check_trigger(fleet: FleetFile, trigger: TriggerTable, path: str, problems: Problems) -> None:
    made = trigger.trigger
    if made.cron is not None and (problem := cron_problem(made.cron)):
        problems.say(f"{path}.cron", f"expected a cron expression, found {found(made.cron)}: {problem}")
    if problem := zone_problem(made.zone):
        problems.say(f"{path}.zone", problem)
    if made.every_s is not None and made.every_s < EVERY_S_LEAST:
        key = "every" if trigger.every is not None else "every_s"
        problems.say(f"{path}.{key}", f"expected at least {EVERY_S_LEAST:g} second, found {made.every_s:g}")
    if made.after is not None and made.after not in fleet.agents:
        problems.unknown(f"{path}.after", "agent", made.after, fleet.agents)
    if made.event is not None:
        _check_event(made.event, f"{path}.event", problems)
    if made.event_as is not None and made.kind not in ("event", "after"):
        problems.say(f"{path}.event_as", "goes with event or after: no other trigger has an event to hand on")


def _check_event(event: str, path: str, problems: Problems) -> None:
    if "*" in event[:-1]:
        problems.say(path, f"expected a kind, or its beginning and one * at the end, found {found(event)}")
        return
    echo = next((kind for kind in ECHOES if kind == event or (event[-1] == "*" and kind.startswith(event[:-1]))), None)
    if echo is not None:
        problems.say(path, f"{event!r} would hear {echo}, which each of its own firings writes: it would fire for ever")
