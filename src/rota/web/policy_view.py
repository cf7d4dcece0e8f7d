"""The policy in force, what else there is, and when a policy was changed or replaced by strict order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rota.decoding import decode_json
from rota.errors import InvalidInput, RotaError
from rota.model import Event, PolicyInForce
from rota.model.events import PolicyChosen, PolicyFellBack, PolicyReloaded
from rota.observe import WaitTimes
from rota.policy import PolicyDescription, make
from rota.time_text import fine_span, local_time

__all__ = ["KINDS", "STARVES", "change_rows", "facts", "params_of", "policy_rows", "wait_facts"]

KINDS = (PolicyFellBack.kind, PolicyChosen.kind, PolicyReloaded.kind)
CHANGES_SHOWN = 50
STARVES = "none: an entry can wait for ever"
_FAILURES = {
    "raised": "it raised an error",
    "stalled": "it took too long",
    "nonsense": "what it returned was not usable",
    "stale": "it answered too late",
}


def facts(in_force: PolicyInForce) -> list[tuple[str, str]]:
    """Return the policy in force in words, with its bound on waiting."""
    order, bound = _order(in_force)
    share_by = "the default" if in_force.share_by_set_by is None else f"set by {in_force.share_by_set_by}"
    found = [
        ("Policy", in_force.sentence()),
        ("Order", order),
        ("Waiting bound", bound),
        ("Sharing counts", f"{in_force.share_by}, {share_by}"),
    ]
    if in_force.isolation != "thread":
        found.append(("Runs in", f"a {in_force.isolation} of its own"))
    return found


def _order(in_force: PolicyInForce) -> tuple[str, str]:
    try:
        made = make(in_force.name, **in_force.params)
    except RotaError as problem:  # a package that only the daemon has
        return f"not known here: {problem.message}", "not known here"
    return made.sentence, made.bound.sentence if made.bound else STARVES


def wait_facts(waits: WaitTimes, oldest_s: float | None) -> list[tuple[str, str]]:
    """Return how long entries really waited."""
    if not waits.count and oldest_s is None:
        return []
    found = [
        ("Median wait", fine_span(waits.p50_s)),
        ("99 % waited at most", fine_span(waits.p99_s)),
        ("Longest wait", fine_span(waits.max_s)),
    ]
    ready = "nothing is ready and waits" if oldest_s is None else f"for {fine_span(oldest_s)}"
    return [*found, ("Ready for longest", ready)]


def policy_rows(known: Sequence[PolicyDescription], in_force: PolicyInForce) -> list[dict[str, Any]]:
    """Return a row for each policy that can be chosen."""
    return [
        {
            "id": each.name,
            "policy": f"{each.name} (in force)" if each.name == in_force.name else each.name,
            "order": each.sentence,
            "bound": each.bound or STARVES,
        }
        for each in known
    ]


def change_rows(events: Sequence[Event], now: float) -> list[dict[str, Any]]:
    """Return the last changes and failures of policies, newest first."""
    return [
        {
            "id": str(event.event_id),
            "when": local_time(event.ts, now),
            "what": _change(event),
            "by": event.author or "–",
        }
        for event in list(reversed(events))[:CHANGES_SHOWN]
    ]


def _change(event: Event) -> str:
    payload = event.payload
    if event.kind == PolicyFellBack.kind:
        why = _FAILURES.get(payload.get("failure", ""), "it failed")
        return f"strict order replaced {payload.get('policy')}: {why}: {payload.get('detail')}"
    if event.kind == PolicyChosen.kind:
        policy = payload.get("policy")
        name = "the default" if policy is None else f"{policy.get('name')}{_given(policy.get('params'))}"
        restarts = "; all shares restarted" if payload.get("restarts_shares") else ""
        return f"the policy is {name}, sharing counts {payload.get('share_by')}{restarts}"
    return "the settings of the policy service were loaded again"


def _given(params: object) -> str:
    if not isinstance(params, dict) or not params:
        return ""
    return f"({', '.join(f'{name}={value}' for name, value in params.items())})"


def params_of(written: str) -> dict[str, Any]:
    """Return parameters that a person wrote as a JSON object; nothing is none."""
    if not written.strip():
        return {}
    try:
        found: dict[str, Any] = decode_json(written, dict[str, Any])
    except msgspec.MsgspecError as problem:
        hint = 'Write a JSON object, for example {"priority_first": true}.'
        raise InvalidInput(f"the parameters cannot be read: {problem}", field="params", hint=hint) from problem
    return found
