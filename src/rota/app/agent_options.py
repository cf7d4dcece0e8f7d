"""The settings of an agent as a Python program gives them, and what they become in the store."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from rota.app.moments import Duration
from rota.errors import FleetInvalid, InvalidInput
from rota.fleet.runners.calling import error_name
from rota.model.cpu import CpuSettings, read_cpu
from rota.model.money import in_micro
from rota.model.ray import RAY
from rota.model.value_types import closest
from rota.model.work import WEIGHT_MAX, WEIGHT_UNIT, Limits, RestartPolicy
from rota.model.worktrees import WorktreeSettings

__all__ = ["AgentOptions", "cpu_of", "split_options", "thousandths", "with_known_dims"]


class AgentOptions(TypedDict, total=False):
    """The settings of a new agent."""

    project: str | None  # created if it does not exist
    project_weight: float  # the project's share among the projects; given by any one agent of the project
    weight: float  # the agent's share among the agents of its project
    priority: int
    max_concurrent: int | None
    intent: str
    budget: Mapping[str, float]  # in total, per dimension: whole numbers, and usd in dollars
    # what enqueues it by itself while a supervisor runs
    every: Duration  # an interval, counted from the epoch: an hour is on the hour
    cron: str  # five fields: minute, hour, day, month, weekday
    zone: str  # of `cron`; default: UTC
    # how it runs: fields of `AgentSettings`
    isolation: Literal["thread", "process"]
    runner: Literal["ray"] | None  # on a Ray cluster, instead of this machine
    resources: Mapping[str, float]  # ray: what a run needs, by Ray's names: {"CPU": 4, "GPU": 1}
    node: str | None  # ray: the name, address or id of the node to run on
    runtime_env: Mapping[str, Any]  # ray: Ray's environment of its runs
    limits: Limits
    restart: RestartPolicy
    expected: Mapping[str, float]
    ceiling: Mapping[str, float]
    draws_on: Sequence[str]
    concurrency_key: str | None  # "repo:{repo}": filled with fields of the payload
    concurrency_limit: int | None  # live runs with the same key, at most
    kind: str | None
    affinity: str | None
    workspace: str | None
    workspace_mode: Literal["exclusive", "shared"] | None
    worktree: WorktreeSettings | None  # git worktrees of its runs; requires a project
    cpu: CpuSettings | Mapping[str, Any] | None  # CPU time and cores: {"weight": 3, "quota": "20ms/100ms"}
    payload: Mapping[str, Any]  # default payload of its entries
    max_attempts: int
    non_retryable: Sequence[type[BaseException] | str]  # errors after which an entry is not retried
    stop_grace_s: float
    env: Mapping[str, str]
    pass_env: Sequence[str]
    cwd: str | None
    stdin: Literal["payload", "none"]
    usage: str | Mapping[str, str] | None


_ROW_FIELDS = ("priority", "max_concurrent", "intent")
_OTHER_FIELDS = ("project", "project_weight", "weight", "budget", "every", "cron", "zone")  # not passed on as they are


def split_options(settings: AgentOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options into fields of the agent's row and fields of `AgentSettings`."""
    given: dict[str, Any] = dict(settings)
    row = {field: given[field] for field in _ROW_FIELDS if field in given}
    row["weight"] = thousandths("weight", given.get("weight", 1.0))
    run = {field: value for field, value in given.items() if field not in (*_ROW_FIELDS, *_OTHER_FIELDS)}
    for field in ("draws_on", "pass_env", "non_retryable"):
        if field in run:
            run[field] = tuple(run[field])
    if (worktree := run.get("worktree")) is not None:
        if given.get("project") is None:
            raise InvalidInput("worktree requires project=: workspaces belong to projects", field="worktree")
        folders = {field: os.path.realpath(getattr(worktree, field)) for field in ("repository", "folder")}
        run["worktree"] = msgspec.structs.replace(worktree, **folders)
    _gather_ray(run)
    if "cpu" in run:
        run["cpu"] = cpu_of(run["cpu"])
    if "non_retryable" in run:
        run["non_retryable"] = tuple(_error_name(each) for each in run["non_retryable"])
    return row, run


def _gather_ray(run: dict[str, Any]) -> None:
    """Make what was given for runs on Ray one field, without the part that only the caller knows."""
    given = {field: run.pop(field) for field in ("resources", "node", "runtime_env") if field in run}
    runner = run.pop("runner", None)
    if runner not in (None, RAY):
        raise InvalidInput(f"runner must be {RAY!r}, not {runner!r}", field="runner")
    if runner is None:
        if given:
            field = next(iter(given))
            raise InvalidInput(f"{field} is only for runs on Ray: add runner={RAY!r}", field=field)
        return
    for field in ("resources", "runtime_env"):
        given[field] = dict(given.get(field) or {})
    run["ray"] = given


def cpu_of(given: CpuSettings | Mapping[str, Any] | None) -> CpuSettings | None:
    """Return CPU settings that were given as such, or as a dictionary as in the fleet file."""
    if given is None or isinstance(given, CpuSettings):
        return given
    if not isinstance(given, Mapping):
        raise FleetInvalid(
            f"cpu must be a mapping of settings, not {given!r}", field="cpu", hint='Write cpu={"quota": "150ms/100ms"}.'
        )
    return read_cpu(dict(given))


def _error_name(error: Any) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, type) and issubclass(error, BaseException):
        return error_name(error)
    text = f"non_retryable has types of errors or their names, not {error!r}"
    raise InvalidInput(text, field="non_retryable", hint="For example non_retryable=(ValueError, KeyError).")


def thousandths(field: str, weight: Any) -> int:
    """Return a weight in whole thousandths."""
    if type(weight) not in (int, float) or not 1 <= weight * WEIGHT_UNIT <= WEIGHT_MAX:
        text = f"{field} must be a number from {1 / WEIGHT_UNIT:g} to {WEIGHT_MAX // WEIGHT_UNIT:,}, not {weight!r}"
        raise InvalidInput(text, field=field, hint="A weight is a share: of two with the weights 3 and 1, 75% and 25%.")
    return round(float(weight) * WEIGHT_UNIT)


def with_known_dims(known: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with their dollars as cost_micro.

    A budget in a dimension that is not known is refused: a misspelt one would never be charged, and limit nothing.
    """
    return {
        field: _amounts(known, field, value) if field in ("budget", "expected", "ceiling") and value else value
        for field, value in settings.items()
    }


def _amounts(known: Collection[str], field: str, given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        amounts = in_micro(given)
    except ValueError as problem:
        raise InvalidInput(f"{field}: {problem}", field=field, hint="For example budget={'usd': 5.00}.") from problem
    for dim in amounts:
        if dim not in known:
            similar = closest(dim, known)
            hint = f"Did you mean {similar!r}?" if similar else f"Declare it: Rota(…, dimensions=({dim!r},))."
            raise InvalidInput(f"{field} has no dimension {dim!r}", field=field, hint=hint)
    return amounts
