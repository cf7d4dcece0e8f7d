"""Policies of other packages: what they get and what they return is plain data, whatever they do.

Code of another package may raise in `__str__`, return objects whose `__eq__`, `__len__` or `__del__` raise or hang, or
write into what it was shown. So nothing of it is used as it is:

    the snapshot   is a copy in depth: frozen structures, tuples and read-only mappings. A policy that changes it by
                   force (the descriptors of a frozen structure allow that) changes its own copy.
    the answer     is checked by exact types before any method of it is called, and copied into new decisions.
    an exception   becomes one short line of printable text.

Built-in policies are trusted and get none of this. These functions call code of the policy (`str` of an exception, for
example), so they run where the policy runs: on its thread, or in its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from types import FunctionType, MappingProxyType
from typing import NamedTuple, TypeVar

from rota.errors import PolicyFailed, PolicyInvalid
from rota.model.checks import INTEGER_MAX
from rota.model.reasons import PickReason
from rota.model.snapshot import Candidate, Decision, Decisions, Snapshot
from rota.policy.contract import Policy
from rota.policy.flow_tree import FlowTree

__all__ = [
    "ERROR_CHARS_MAX",
    "REASON_CHARS_MAX",
    "Offer",
    "check_decisions",
    "check_picked",
    "copied_values",
    "copy_decisions",
    "describe_error",
    "is_built_in",
    "nonsense",
    "printable",
    "protected_copy",
    "raised",
    "type_name",
]

ERROR_CHARS_MAX = 200  # of an exception's message
REASON_CHARS_MAX = 200  # of the words of a decision

K = TypeVar("K")
V = TypeVar("V")

# The attribute `__name__` of a class is code of its metaclass; this reads the true one.
_class_name = type.__dict__["__name__"].__get__


def is_built_in(policy: Policy) -> bool:
    """Whether the functions of a policy are those of this package."""
    return _is_ours(policy.rank) and (policy.incremental is None or _is_ours(policy.incremental))


def _is_ours(function: object) -> bool:
    """Whether a function is defined in this package.

    Its `__module__` does not say so: `functools.wraps` copies that to any function.
    """
    function = function.func if type(function) is partial else function
    if type(function) is not FunctionType:
        return function is FlowTree
    module = function.__globals__.get("__name__")
    return type(module) is str and module.startswith("rota.policy.")


# --- the snapshot --------------------------------------------------------------------------------


def protected_copy(snapshot: Snapshot) -> Snapshot:
    """Return a copy in depth that cannot be changed by mistake, and whose changes reach nothing else."""
    return Snapshot(
        now=snapshot.now,
        slots=tuple(map(copy, snapshot.slots)),
        candidates=tuple(map(copy, snapshot.candidates)),
        owners=MappingProxyType(copied_values(snapshot.owners)),
        groups=MappingProxyType(copied_values(snapshot.groups)),
    )


def copied_values(structures: Mapping[K, V]) -> dict[K, V]:
    """Return a mapping with copies of its values, which are frozen structures."""
    return dict(zip(structures, map(copy, structures.values()), strict=True))


# --- the answer ----------------------------------------------------------------------------------


class Offer(NamedTuple):
    """What a policy may pick from, as it was before the policy saw it."""

    candidates: Mapping[int, Candidate]  # by id
    slots: int
    kinds: frozenset[str]  # of the slots

    @classmethod
    def of(cls, snapshot: Snapshot, candidates: Mapping[int, Candidate] | None = None) -> Offer:
        """Return the offer of a snapshot; `candidates` are those of the snapshot, if the caller has them by id."""
        if candidates is None:
            candidates = {candidate.id: candidate for candidate in snapshot.candidates}
        kinds = frozenset(kind for slot in snapshot.slots for kind in slot.kinds)
        return cls(candidates, len(snapshot.slots), kinds)

    @property
    def has_fitting_slot(self) -> bool:
        """Whether some candidate fits some slot."""
        return self.slots > 0 and any(each.kind is None or each.kind in self.kinds for each in self.candidates.values())


def check_decisions(policy: Policy, answer: object, offer: Offer) -> Decisions:
    """Return the decisions of a policy as new objects, or raise `PolicyFailed` if they are not valid.

    Only what was offered may be picked, each candidate at most once, and not more than there are slots. A policy that
    picks nothing although a candidate fits a slot fails too, unless it says that it `holds_back`.
    """
    decisions = copy_decisions(policy, answer, offer.slots)
    picked: set[int] = set()
    for each in decisions:
        if each.candidate_id in picked or each.candidate_id not in offer.candidates:
            raise nonsense(policy, f"picked {each.candidate_id}: twice, or it was not in the snapshot")
        picked.add(each.candidate_id)
    if not decisions and not policy.holds_back and offer.has_fitting_slot:
        raise nonsense(policy, f"picked none of {len(offer.candidates):,} candidates although one fits a free slot")
    return decisions


def copy_decisions(policy: Policy, answer: object, slots: int) -> Decisions:
    """Return an answer as new decisions of exact types, at most one for each slot, or raise `PolicyFailed`."""
    if type(answer) is not tuple and type(answer) is not list:
        raise nonsense(policy, f"returned {type_name(answer)}, not decisions")
    if len(answer) > slots:
        raise nonsense(policy, f"made {len(answer):,} decisions for {slots:,} slots")
    decisions: list[Decision] = []
    for each in tuple(answer):
        if type(each) is not Decision:
            raise nonsense(policy, f"returned {type_name(each)}, not a decision")
        picked, slot_id, reason = each.candidate_id, each.slot_id, each.reason
        if type(picked) is not int or type(slot_id) is not int:
            raise nonsense(policy, f"picked {type_name(picked)} for slot {type_name(slot_id)}: ids are integers")
        if abs(picked) > INTEGER_MAX or abs(slot_id) > INTEGER_MAX:
            raise nonsense(policy, "picked a number of more than 64 bits")
        decisions.append(Decision(picked, slot_id, PickReason(policy.name, _checked_words(policy, reason))))
    return tuple(decisions)


def check_picked(policy: Policy, picked: object) -> int | None:
    """Return the id of what an incremental order picked, or None if it picked nothing."""
    if picked is None:
        return None
    if type(picked) is not Candidate:
        raise nonsense(policy, f"picked {type_name(picked)}, not a candidate")
    if type(picked.id) is not int:
        raise nonsense(policy, f"picked {type_name(picked.id)}: ids are integers")
    return picked.id


def _checked_words(policy: Policy, reason: object) -> str:
    if type(reason) is not PickReason or type(reason.words) is not str or not reason.words:
        raise nonsense(policy, "gave no reason for a decision")
    words = reason.words
    return words if len(words) <= REASON_CHARS_MAX and words.isprintable() else printable(words, REASON_CHARS_MAX)


def raised(policy: Policy, error: BaseException) -> PolicyFailed:
    """Return the failure of a policy that raised."""
    return PolicyFailed(f"{policy.name} raised {describe_error(error)}", policy=policy.name, failure="raised")


def nonsense(policy: Policy, words: str) -> PolicyFailed:
    """Return the failure of a policy whose answer is invalid."""
    return PolicyFailed(f"{policy.name} {words}", policy=policy.name, failure="nonsense")


# --- text ----------------------------------------------------------------------------------------


def describe_error(error: BaseException) -> str:
    """Return the type and the beginning of the message of an exception, whatever its `__str__` does."""
    if (type(error) is PolicyFailed or type(error) is PolicyInvalid) and type(error.message) is str:
        return printable(error.message, ERROR_CHARS_MAX)  # usually one of ours; a policy may raise it, too
    try:
        message = str(error)
    except BaseException:  # its __str__ is code of the policy
        return f"{type_name(error)} (its message cannot be read)"
    text = printable(message, ERROR_CHARS_MAX)
    return f"{type_name(error)}: {text}" if text else type_name(error)


def type_name(value: object) -> str:
    """Return the name of a value's type without running code of the type."""
    return printable(_class_name(type(value)), 80)


def printable(text: str, chars_max: int) -> str:
    """Return the beginning of a text without control codes; `text` may be a subclass of str."""
    cut = str.__getitem__(text, slice(0, chars_max + 1))
    more = len(cut) > chars_max
    clean = "".join(each if each.isprintable() else " " for each in cut[:chars_max])
    return f"{clean}…" if more else clean
