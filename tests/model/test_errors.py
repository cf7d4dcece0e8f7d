"""Errors are part of the interface: one tree, one table of codes, messages with hints."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import msgspec
import pytest

from rota import errors
from rota.errors import CODES, RESERVED, RotaError
from rota.rpc.error_codec import ErrorObject, from_error_object, to_error_object

_found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RotaError)]
KINDS = list(dict.fromkeys(_found))  # an alias is not another error

# Codes that other systems use already: they must never change.
SEEDED = {
    -32101: "NotEnabled",
    -32102: "UnknownPid",
    -32103: "IllegalTransition",
    -32104: "InvalidPayload",
    -32105: "SchemaMismatch",
    -32121: "LedgerUnknownDim",
    -32122: "LedgerExists",
    -32123: "LedgerInvalidAmount",
    -32124: "LedgerInvalidRefund",
    -32125: "LedgerInvalidWarnAt",
    -32131: "SchedIllegalTransition",
    -32132: "SchedUnknownId",
    -32133: "SchedInvalidPayload",
    -32134: "SchedAdmissionDenied",
    -32135: "SchedInvalidStateFilter",
    -32136: "StaleClaim",
    -32138: "PolicyFailed",
    -32171: "RunnerIllegalState",
    -32172: "RunnerHandshakeFailed",
    -32173: "RunnerUnknownPid",
    -32174: "RunnerIpcTimeout",
    -32001: "NotOriginator",
    -32002: "UnknownRequest",
    -32602: "InvalidInput",
}


def test_published_codes_do_not_change() -> None:
    assert {code: row.raised_by.__name__ for code, row in CODES.items() if row.raised_by and code in SEEDED} == SEEDED


def test_no_code_is_used_twice_and_reserved_codes_are_unused() -> None:
    raised = [kind.code for kind in KINDS if "code" in vars(kind)]
    assert len(raised) == len(set(raised))
    assert not any(code in numbers for code in raised for numbers in RESERVED)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_code_a_name_a_meaning_and_a_hint(kind: type[RotaError]) -> None:
    assert kind.code in CODES
    assert re.fullmatch(r"[a-z][a-z_]+", kind.name)
    assert kind.meaning
    assert kind.__doc__
    assert kind.hint.endswith(".") or issubclass(kind, errors.IllegalTransition)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_tree_in_the_module_docstring_has_every_error(kind: type[RotaError]) -> None:
    assert re.search(rf"\b{kind.__name__}\b", errors.__doc__ or "")


def test_the_queue_error_has_two_names() -> None:
    assert errors.IllegalQueueTransition is errors.SchedIllegalTransition


def test_an_error_survives_pickling() -> None:
    for error in (
        errors.UnknownPid(7),
        errors.LimitExceeded("payload_bytes_max", 10, 11, field="payload"),
        errors.SchedIllegalTransition("entry", 1, "queued", "complete", legal=["claim"]),
        errors.InvalidStateTransition(1, "READY", "BLOCKED", legal=["RUNNING"]),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.to_rpc_data() == error.to_rpc_data()


def test_not_found_is_a_key_error_that_reads_like_a_sentence() -> None:
    with pytest.raises(KeyError) as missing:
        raise errors.UnknownPid(9)
    assert str(missing.value) == "no agent has pid 9. Check the pid; `rota agents` lists them."


# --- facts ---------------------------------------------------------------------------------------

SOURCE = Path(errors.__file__).parent
BY_NAME = {kind.__name__: kind for kind in KINDS}
NOT_FACTS = {"hint", "code", "legal", "history", "diagnostics", None}  # a property has its own name


def raised_with() -> set[tuple[str, str]]:
    """The class and the name of each fact that is given where an error is made, anywhere in the source."""
    calls = (
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME
    )
    return {(call.func.id, str(each.arg)) for call in calls for each in call.keywords if each.arg not in NOT_FACTS}  # type: ignore[attr-defined]


def test_every_fact_that_is_given_is_declared_by_its_class() -> None:
    given = raised_with()
    assert len(given) > 60
    assert not [(name, fact) for name, fact in sorted(given) if fact not in BY_NAME[name].facts]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_fact_hides_an_attribute_of_every_error(kind: type[RotaError]) -> None:
    assert not set(kind.facts) & {"args", "code", "data", "facts", "hint", "meaning", "message", "name"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_facts_are_attributes_also_after_the_wire_and_after_pickling(kind: type[RotaError]) -> None:
    data: dict[str, object] = {fact: f"the {fact}" for fact in kind.facts}
    made = errors.rebuilt(kind, "a message", "A hint.", dict(data))
    wired = from_error_object(msgspec.json.decode(msgspec.json.encode(to_error_object(made)), type=ErrorObject))
    for error in (made, wired, pickle.loads(pickle.dumps(made))):
        assert type(error) is kind or kind.name == type(error).name
        assert {fact: getattr(error, fact) for fact in kind.facts} == data
        assert (error.message, error.hint, error.code) == ("a message", "A hint.", kind.code)
        with pytest.raises(AttributeError):
            getattr(error, "no_such_fact")  # noqa: B009  # it has no such attribute
    bare = errors.rebuilt(kind, "a message", "A hint.", {})
    assert {getattr(bare, fact) for fact in kind.facts} <= {None}


def test_facts_that_json_cannot_hold_as_they_are_come_back_as_they_were() -> None:
    for error, facts in (
        (errors.AmbiguousAgent("a", {1: None, 2: "p"}), ("agent", "candidates", "field")),
        (errors.SchedIllegalTransition("entry", 1, "queued", "complete", legal=["claim"], history=["born"]),
         ("legal", "history", "prev_state", "op", "subject")),
        (errors.InvalidStateTransition(1, "READY", "BLOCKED", legal=["RUNNING"]), ("pid", "target", "legal")),
        (errors.UnknownAgent("a", "p"), ("agent", "project_id")),
        (errors.LimitExceeded("x", 1, 2, field="f"), ("limit", "maximum", "asked", "field")),
    ):  # fmt: skip
        again = from_error_object(msgspec.json.decode(msgspec.json.encode(to_error_object(error)), type=ErrorObject))
        assert type(again) is type(error)
        assert [getattr(again, fact) for fact in facts] == [getattr(error, fact) for fact in facts]
        assert all(getattr(error, fact) is not None for fact in facts)
