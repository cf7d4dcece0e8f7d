"""Policies that misbehave, each in its own way, as another package would register them.

A case is a ranking function with the failure that rota must find (None: it does no harm). `NEEDS_PROCESS` are the cases
that no thread can contain: they end the process, take its memory, or hold its interpreter lock.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import locale
import math
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from rota.errors import PolicyFailed
from rota.model.reasons import PickReason
from rota.model.snapshot import Decision, Snapshot
from rota.policy.contract import Policy
from rota.policy.ranking import strict

HUGE = 50_000_000
let_go = threading.Event()  # set by a test when it no longer needs what hangs


class Case(NamedTuple):
    """A ranking function, and the failure that is recorded."""

    rank: Callable[[Snapshot], Any]
    failure: str | None


CASES: dict[str, Case] = {}
NEEDS_PROCESS: set[str] = set()


def case(failure: str | None, *, needs_process: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(rank: Callable[..., Any]) -> Callable[..., Any]:
        CASES[rank.__name__] = Case(rank, failure)
        if needs_process:
            NEEDS_PROCESS.add(rank.__name__)
        return rank

    return register


def well(snapshot: Snapshot) -> list[Decision]:
    """The answer of a policy that behaves: the lowest priority first."""
    order = sorted(snapshot.candidates, key=lambda candidate: (candidate.priority, candidate.id))
    return [
        Decision(each.id, slot.id, PickReason("mine", "lowest first"))
        for each, slot in zip(order, snapshot.slots, strict=False)
    ]


def hang() -> None:
    let_go.wait(60)


# --- exceptions ----------------------------------------------------------------------------------


@case("raised")
def raises(_: Snapshot) -> Any:
    raise ZeroDivisionError("by design")


class _BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


@case("raised")
def raises_an_error_without_text(_: Snapshot) -> Any:
    raise _BadText


class _ExitsInText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@case("raised")
def raises_an_error_that_exits_in_str(_: Snapshot) -> Any:
    raise _ExitsInText


class _NoText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # noqa: PLE0307  # on purpose


@case("raised")
def raises_an_error_whose_text_is_a_number(_: Snapshot) -> Any:
    raise _NoText


class _OddText(str):
    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise ValueError("not sliceable")

    def __format__(self, _: str) -> str:
        raise ValueError("not formattable")

    __str__ = __repr__ = __len__ = __iter__ = __getitem__  # type: ignore[assignment]


class _OddError(Exception):
    def __str__(self) -> str:
        return _OddText("odd")


@case("raised")
def raises_an_error_with_odd_text(_: Snapshot) -> Any:
    raise _OddError


@case("raised")
def raises_a_huge_message(_: Snapshot) -> Any:
    raise ValueError("x" * HUGE)


@case("raised")
def raises_escape_codes(_: Snapshot) -> Any:
    raise ValueError("\x1b[2J\x00\ud800\u202e broken")


class _SlowText(Exception):
    def __str__(self) -> str:
        hang()
        return "late"


@case("stalled")
def raises_an_error_that_hangs_in_str(_: Snapshot) -> Any:
    raise _SlowText


class _NamelessType(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class _Nameless(Exception, metaclass=_NamelessType):
    pass


@case("raised")
def raises_an_error_of_a_class_without_a_name(_: Snapshot) -> Any:
    raise _Nameless("nameless")


@case("raised")
def exits(_: Snapshot) -> Any:
    sys.exit(4)


@case("raised")
def interrupts(_: Snapshot) -> Any:
    raise KeyboardInterrupt


@case("raised")
def ends_like_a_generator(_: Snapshot) -> Any:
    raise GeneratorExit


class _Base(BaseException):
    pass


@case("raised")
def raises_a_base_exception(_: Snapshot) -> Any:
    raise _Base("base")


@case("raised")
def recurses(snapshot: Snapshot) -> Any:
    return recurses(snapshot)


@case("raised")
def raises_an_error_of_rota(_: Snapshot) -> Any:
    raise PolicyFailed("x" * 1_000_000, failure="\x1b")


@case("raised")
def has_no_memory(_: Snapshot) -> Any:
    raise MemoryError


@case("raised")
@functools.wraps(strict().rank)
def looks_like_a_built_in(_: Snapshot) -> Any:
    raise SystemExit(5)


CASES["looks_like_a_built_in"] = CASES.pop("rank")  # its name was copied, too


# --- answers -------------------------------------------------------------------------------------


@case("nonsense")
def answers_none(_: Snapshot) -> Any:
    return None


@case("nonsense")
def answers_text(_: Snapshot) -> Any:
    return "strict"


@case("nonsense")
def answers_numbers(_: Snapshot) -> Any:
    return (1, 2)


@case("nonsense")
def answers_for_ever(_: Snapshot) -> Any:
    def decisions() -> Iterator[Decision]:
        while True:
            yield Decision(1, 0, PickReason("mine", "again"))

    return decisions()


class _BadList(list[Any]):
    def __len__(self) -> int:
        raise ValueError("no length")

    def __iter__(self) -> Iterator[Any]:
        hang()
        return iter(())

    __repr__ = __eq__ = __hash__ = __bool__ = __len__  # type: ignore[assignment]


@case("nonsense")
def answers_an_odd_list(snapshot: Snapshot) -> Any:
    return _BadList(well(snapshot))


class _Unprintable:
    def __repr__(self) -> str:
        raise ValueError("not printable")

    __str__ = __eq__ = __hash__ = __bool__ = __len__ = __repr__  # type: ignore[assignment]


@case("nonsense")
def answers_something_unprintable(_: Snapshot) -> Any:
    return _Unprintable()


class _Clinging:
    def __del__(self) -> None:
        hang()


@case("stalled")
def answers_something_that_hangs_when_released(_: Snapshot) -> Any:
    return _Clinging()


@case("nonsense")
def answers_a_million_decisions(snapshot: Snapshot) -> Any:
    return well(snapshot)[:1] * 1_000_000


@case("nonsense")
def picks_too_many(snapshot: Snapshot) -> Any:
    reason = PickReason("mine", "all of them")
    return [Decision(each.id, at, reason) for at, each in enumerate(snapshot.candidates)]


@case("nonsense")
def picks_twice(snapshot: Snapshot) -> Any:
    return well(snapshot)[:1] * 2


@case("nonsense")
def picks_a_stranger(snapshot: Snapshot) -> Any:
    return [*well(snapshot)[:1], Decision(10**9, 0, PickReason("mine", "whoever"))]


@case("nonsense")
def picks_nothing(_: Snapshot) -> Any:
    return ()


class _Lookalike:
    @property
    def candidate_id(self) -> int:
        raise ValueError("no id")

    slot_id = reason = candidate_id


@case("nonsense")
def answers_a_lookalike(_: Snapshot) -> Any:
    return (_Lookalike(),)


class _OwnDecision(Decision, frozen=True):
    pass


@case("nonsense")
def answers_a_subclass(snapshot: Snapshot) -> Any:
    return [_OwnDecision(*msgspec.structs.astuple(each)) for each in well(snapshot)]


class _OddNumber(int):
    def __eq__(self, _: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def _with_id(candidate_id: Any) -> list[Decision]:
    return [Decision(candidate_id, 0, PickReason("mine", "odd"))]


ODD_IDS: dict[str, Any] = {
    "a_list": [1],
    "a_fraction": 1.0,
    "not_a_number": math.nan,
    "infinity": math.inf,
    "true": True,
    "an_odd_integer": _OddNumber(1),
    "a_huge_integer": 10**5_000,
    "nothing": None,
}
for _name, _id in ODD_IDS.items():
    CASES[f"picks_{_name}"] = Case(lambda _, picked=_id: _with_id(picked), "nonsense")  # type: ignore[misc]


def _with_reason(reason: Any) -> Callable[[Snapshot], Any]:
    return lambda snapshot: [msgspec.structs.replace(each, reason=reason) for each in well(snapshot)]


CASES["gives_no_reason"] = Case(_with_reason(None), "nonsense")
CASES["gives_text_as_a_reason"] = Case(_with_reason("because"), "nonsense")
CASES["gives_an_empty_reason"] = Case(_with_reason(PickReason("mine", "")), "nonsense")
CASES["gives_bytes_as_a_reason"] = Case(_with_reason(PickReason("mine", b"because")), "nonsense")  # type: ignore[arg-type]
CASES["gives_a_huge_reason"] = Case(_with_reason(PickReason("mine", "x" * HUGE)), None)
CASES["gives_escape_codes_as_a_reason"] = Case(_with_reason(PickReason("mine", "\x1b[2J\x00\ud800\n")), None)
CASES["gives_a_word_as_a_slot"] = Case(
    lambda snapshot: [msgspec.structs.replace(each, slot_id="first") for each in well(snapshot)], "nonsense"
)


# --- the snapshot --------------------------------------------------------------------------------


@case("raised")
def changes_the_accounts(snapshot: Snapshot) -> Any:
    snapshot.owners.clear()  # type: ignore[attr-defined]
    return well(snapshot)


@case(None)
def changes_everything_by_force(snapshot: Snapshot) -> Any:
    answer = well(snapshot)
    for each in (*snapshot.candidates, *snapshot.owners.values(), *snapshot.slots):
        for name in set(each.__struct_fields__) - {"id", "priority"}:  # which it needs itself, in the next round
            msgspec.structs.force_setattr(each, name, None)
    msgspec.structs.force_setattr(snapshot, "candidates", None)
    return answer


@case("nonsense")
def renames_a_candidate(snapshot: Snapshot) -> Any:
    msgspec.structs.force_setattr(snapshot.candidates[0], "id", 77)
    return _with_id(77)


@case(None)
def changes_its_answer_later(snapshot: Snapshot) -> Any:
    answer = well(snapshot)

    def change() -> None:
        for _ in range(1_000):
            answer.clear()
            answer.extend([_Unprintable()] * 3)  # type: ignore[list-item]

    given = list(answer)
    threading.Thread(target=change, daemon=True).start()
    return given


# --- time, threads and processes -----------------------------------------------------------------


@case("stalled")
def sleeps(snapshot: Snapshot) -> Any:
    hang()
    return well(snapshot)


@case("stalled")
def runs_in_circles(snapshot: Snapshot) -> Any:
    while not let_go.is_set():
        pass
    return well(snapshot)


@case(None)
def leaves_threads_behind(snapshot: Snapshot) -> Any:
    for _ in range(20):
        threading.Thread(target=hang, daemon=True).start()
    return well(snapshot)


@case(None)
def lowers_the_recursion_limit(snapshot: Snapshot) -> Any:
    answer = well(snapshot)
    sys.setrecursionlimit(60)
    return answer


@case(None, needs_process=True)  # on a thread the fork waits for the writers, and that is too long
def forks(snapshot: Snapshot) -> Any:
    os.fork()  # both processes return
    return well(snapshot)


@case(None, needs_process=True)
def prints(snapshot: Snapshot) -> Any:
    os.write(1, b"\x1b[2J" * 100_000)
    print("x" * 1_000_000)
    return well(snapshot)


@case(None, needs_process=True)
def changes_global_settings(snapshot: Snapshot) -> Any:
    answer = well(snapshot)
    os.chdir("/")
    os.umask(0)
    os.environ.clear()
    locale.setlocale(locale.LC_ALL, "C")
    random.seed(1)
    gc.disable()
    sys.setswitchinterval(1e6)
    sys.stdout = sys.stderr = None
    sys.modules.clear()
    return answer


@case("raised", needs_process=True)
def ends_the_process(_: Snapshot) -> Any:
    os._exit(3)


@case("raised", needs_process=True)
def kills_itself(_: Snapshot) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@case("raised", needs_process=True)
def crashes(_: Snapshot) -> Any:
    ctypes.string_at(0)


@case("raised", needs_process=True)
def kills_its_parent(_: Snapshot) -> Any:
    os.kill(os.getppid(), signal.SIGKILL)
    hang()


@case("stalled", needs_process=True)
def stops_its_parent(_: Snapshot) -> Any:
    os.kill(os.getppid(), signal.SIGSTOP)
    hang()


@case("stalled", needs_process=True)
def ignores_signals(_: Snapshot) -> Any:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    hang()


@case("raised", needs_process=True)
def takes_all_memory(_: Snapshot) -> Any:
    return [bytes(1024 * 1024) for _ in range(4_096)]


@case("stalled", needs_process=True)
def holds_the_interpreter_lock(_: Snapshot) -> Any:
    ctypes.PyDLL(None).sleep(60)


@case("raised", needs_process=True)
def closes_all_descriptors(snapshot: Snapshot) -> Any:
    answer = well(snapshot)
    os.closerange(0, 64)
    return answer


@case("nonsense", needs_process=True)
def writes_to_all_descriptors(snapshot: Snapshot) -> Any:
    for number in range(64):
        try:
            os.write(number, b"\x00\x00\x00\x04junk" * 3)
        except OSError:
            continue
    return well(snapshot)


@case("nonsense", needs_process=True)
def announces_a_huge_message(snapshot: Snapshot) -> Any:
    os.write(3, b"\xff\xff\xff\xff")
    return well(snapshot)


# --- as another package registers them -----------------------------------------------------------


def _maker(name: str) -> Callable[..., Policy]:
    return lambda **_: Policy(name=name, rank=CASES[name].rank, sentence="It misbehaves.")


def rank_case(name: str, snapshot: Snapshot) -> Any:
    """Rank by a case; with the name bound, another process can import it."""
    return CASES[name].rank(snapshot)


def policy_of(name: str) -> Policy:
    """The policy of a case."""
    return Policy(name="mine", rank=functools.partial(rank_case, name), sentence="It misbehaves.")


def not_made(**_: Any) -> Policy:
    raise ValueError("x" * HUGE)


def exits_when_made(**_: Any) -> Policy:
    raise SystemExit(7)


def not_a_policy(**_: Any) -> Any:
    return _Unprintable()


class _Moody(Policy, frozen=True):
    """Computes its attributes."""

    def __getattribute__(self, name: str) -> Any:
        if name == "sentence" and let_go is not None:
            raise SystemExit(8)
        return super().__getattribute__(name)


def moody(**_: Any) -> Any:
    return msgspec.convert({"name": "moody", "sentence": "x"}, dict) and object.__new__(_Moody)


makers = SimpleNamespace(
    **{name: _maker(name) for name in CASES},
    not_made=not_made,
    exits_when_made=exits_when_made,
    not_a_policy=not_a_policy,
    moody=moody,
)
MAKERS_THAT_FAIL = ("not_made", "exits_when_made", "not_a_policy", "moody", "missing", "no_module")


def register(folder: Any) -> None:
    """Install a package that registers every case, and some that cannot be made, in a folder."""
    lines = [f"{name} = {__name__}:makers.{name}" for name in vars(makers)]
    lines += [f"missing = {__name__}:makers.missing", "no_module = nowhere.to.be.found:make"]
    package = folder / "misbehaving-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1\n")
    (package / "entry_points.txt").write_text("\n".join(["[rota.policies]", *lines, ""]))
