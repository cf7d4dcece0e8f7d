"""Errors are part of the interface: one tree, one table of codes, messages with hints."""

from __future__ import annotations

import pickle
import re

import pytest

from rota import errors
from rota.errors import CODES, RESERVED, RotaError

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
    assert str(missing.value) == "no agent has pid 9. Check the id; `list` shows what exists."
