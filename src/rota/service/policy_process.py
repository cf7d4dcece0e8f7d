"""A policy in a process of its own: limited, killed when it is late, and started again after a pause.

A thread cannot be killed, and code in this process can end it, fill its memory or hold the interpreter lock for ever.
`isolate` starts a process that imports the policy; this one never does. It is a session of a reaper, so its memory is
limited, and whatever it starts is killed with it.

    memory     `MEMORY_BYTES_MAX`, of each of its processes (policy_session.py)
    time       `LOAD_TIMEOUT_S` to import and make the policy, `ANSWER_TIMEOUT_S` for each answer; then it is killed
    answers    are decoded as plain data of exact types and checked against the snapshot, as those of any policy
    failures   the process is killed, and started again when it is next needed: after 1 s, 2 s, 4 s, … up to 60 s

`isolate` returns a `Policy` whose `rank` asks the process, so it can be used wherever a policy can. The dispatcher asks
outside its transactions (isolated_pass.py).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rota.clock import Clock, SystemClock
from rota.errors import PolicyFailed, PolicyInvalid, RotaError
from rota.lazy import late
from rota.model.reasons import PickReason
from rota.model.snapshot import Decision, Decisions, Key, Snapshot
from rota.policy import registry
from rota.policy.contract import Bound, Policy, PolicyIsolation, as_policy
from rota.policy.foreign import Offer, check_decisions, describe_error, is_built_in, printable
from rota.store.forks import in_child

if TYPE_CHECKING:
    from rota.service import policy_session, policy_worker
    from rota.service.policy_session import PolicySession
    from rota.service.policy_worker import Description, PolicySource
else:  # most commands start no process for a policy
    policy_session, policy_worker = late("rota.service.policy_session"), late("rota.service.policy_worker")

__all__ = [
    "ANSWER_TIMEOUT_S",
    "BACKOFF_S",
    "LOAD_TIMEOUT_S",
    "PolicyProcess",
    "isolate",
    "make_policy",
]

ANSWER_TIMEOUT_S = 1.0  # for one answer, in real time
LOAD_TIMEOUT_S = registry.MAKE_TIMEOUT_S
BACKOFF_S = 1.0  # after the first failure; doubled after each that follows
BACKOFF_MAX_S = 60.0
T = TypeVar("T")


def make_policy(name: str, params: Mapping[str, Any], isolation: PolicyIsolation) -> Policy:
    """Return a registered policy, in a process of its own if asked for."""
    return isolate(name, params) if isolation == "process" else registry.make(name, **params)


def isolate(policy: Policy | str, params: Mapping[str, Any] | None = None, *, clock: Clock | None = None) -> Policy:
    """Return a policy, given by name or as an object, that runs in a process of its own.

    Built-in policies are returned as they are. The ranking function of an object must be one that another process can
    import. Raises `PolicyInvalid` if the policy cannot be made there.
    """
    if isinstance(policy, str):
        if policy not in registry.names() or registry.is_built_in_name(policy):
            return registry.make(policy, **(params or {}))
        source = policy_worker.PolicySource(path=list(sys.path), name=policy, params=dict(params or {}))
    else:
        given = as_policy(policy)
        if is_built_in(given) or type(given.rank) is PolicyProcess:
            return given
        source = policy_worker.PolicySource(
            path=list(sys.path), name=given.name, policy=msgspec.structs.replace(given, bound=None, incremental=None)
        )
    process = PolicyProcess(source, clock=clock)
    described = process.describe()
    return (
        _as_policy(described, process)
        if source.policy is None
        else msgspec.structs.replace(given, rank=process, incremental=None)
    )


def _as_policy(described: Description, process: PolicyProcess) -> Policy:
    bound = described.bound
    return Policy(
        name=described.name,
        rank=process,
        sentence=described.sentence,
        bound=None if bound is None else Bound(bound[0], _passes_elsewhere, bound[1]),  # type: ignore[arg-type]
        window=described.window,  # type: ignore[arg-type]  # checked when the policy is created
        accounts=described.accounts,  # type: ignore[arg-type]
        eligibility=described.eligibility,
        guarantee=described.guarantee,
        holds_back=described.holds_back,
    )


def _passes_elsewhere(_snapshot: Snapshot, _subject: Key) -> int:
    raise PolicyInvalid(
        "the bound of a policy in another process cannot be computed here", hint="Use the policy without isolation."
    )


class PolicyProcess:
    """Asks one policy in its process, which is started when it is needed."""

    def __init__(self, source: PolicySource, *, clock: Clock | None = None) -> None:
        self._name = source.name
        try:
            self._source = source.packed()
        except Exception as problem:
            raise PolicyInvalid(
                f"the policy {source.name} cannot be sent to another process",
                policy=source.name,
                hint="Define its ranking function at the top of a module that can be imported.",
            ) from problem
        self._clock = clock or SystemClock()
        self._forget_session()
        in_child(self._forget_session)
        self._failures = 0  # in a row
        self._retry_at = 0.0  # monotonic
        self._description: Description | None = None

    def _forget_session(self) -> None:
        """Begin without a process; a forked child starts its own."""
        self._lock = threading.Lock()  # of all below
        self._running: PolicySession | None = None

    @property
    def backoff_s(self) -> float:
        """How long the policy rests after the failures it has had in a row."""
        return float(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** max(0, min(self._failures, 16) - 1)))

    def describe(self) -> Description:
        """Start the process and return what the policy says about itself, or raise `PolicyInvalid`."""
        with self._lock:
            try:
                return self._start().description
            except PolicyFailed as failure:
                hint = "Correct its package, or choose another policy: `rota policy list` shows them."
                raise PolicyInvalid(failure.message, policy=self._name, hint=hint) from failure

    def __call__(self, snapshot: Snapshot) -> Decisions:
        """Rank a snapshot; raises `PolicyFailed`, also while the process rests after a failure."""
        if self._failures and self._clock.monotonic() < self._retry_at:
            raise self._failed("stalled", f"rests for {self.backoff_s:.0f} s after a failure")
        return self.ask(snapshot)

    def ask(self, snapshot: Snapshot) -> Decisions:
        """Rank a snapshot; raises `PolicyFailed`, and the next call starts a new process."""
        with self._lock:
            try:
                running = self._running or self._start()
                decisions = self._answer(running, snapshot)
            except PolicyFailed:
                self._kill()
                self._failures += 1
                self._retry_at = self._clock.monotonic() + self.backoff_s
                raise
            self._failures = 0
            return decisions

    def close(self) -> None:
        """End the process."""
        running = self._running
        if running is not None:
            running.shut_down()  # a thread that waits for an answer gives up
        with self._lock:
            self._kill()

    # --- internals, with the lock held -----------------------------------------------------------

    def _start(self) -> PolicySession:
        try:
            running = policy_session.PolicySession()
        except RotaError as problem:
            raise self._failed("raised", f"has no process: {problem.message}") from problem
        self._running, self._finalizer = running, weakref.finalize(self, running.end)
        running.connection.settimeout(LOAD_TIMEOUT_S)
        described = self._exchange(
            running, self._source, policy_worker.read_description, f"be made within {LOAD_TIMEOUT_S:.0f} s"
        )
        if described.problem:
            self._kill()
            raise self._failed("raised", f"cannot be made: {printable(described.problem, 400)}")
        self._description = running.description = described
        return running

    def _answer(self, running: PolicySession, snapshot: Snapshot) -> Decisions:
        try:
            question = _encode(snapshot)
        except (TypeError, ValueError, OverflowError) as problem:  # an integer of more than 64 bits, for example
            raise self._failed("raised", f"cannot be sent the snapshot: {describe_error(problem)}") from problem
        running.connection.settimeout(ANSWER_TIMEOUT_S)
        answer = self._exchange(running, question, policy_worker.read_answer, f"answer within {ANSWER_TIMEOUT_S:.2g} s")
        if answer.failure:
            failure = answer.failure if answer.failure in ("raised", "nonsense") else "nonsense"
            raise PolicyFailed(printable(answer.detail, 400), policy=self._name, failure=failure)
        reason = [PickReason(self._name, words) for _, _, words in answer.decisions]
        decisions = [Decision(each[0], each[1], why) for each, why in zip(answer.decisions, reason, strict=True)]
        assert self._description is not None  # noqa: S101  # it has started
        checked = Policy(name=self._name, rank=self, sentence="-", holds_back=self._description.holds_back)
        return check_decisions(checked, decisions, Offer.of(snapshot))

    def _exchange(self, running: PolicySession, content: bytes, read: Callable[[bytes], T], task: str) -> T:
        try:
            policy_worker.write_message(running.connection, content)
            return read(policy_worker.read_message(running.connection, policy_worker.ANSWER_BYTES_MAX))
        except TimeoutError:
            failure = self._failed("stalled", f"did not {task} and was killed")
        except (EOFError, OSError):
            failure = self._failed("raised", f"ended its process: {running.exit_text()}")
        except (ValueError, msgspec.MsgspecError):
            failure = self._failed("nonsense", "sent a message that cannot be read")
        self._kill()
        raise failure

    def _kill(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._finalizer()  # which ends it

    def _failed(self, failure: str, words: str) -> PolicyFailed:
        return PolicyFailed(f"{self._name} {words}", policy=self._name, failure=failure)


_encode = msgspec.msgpack.Encoder(enc_hook=dict).encode  # read-only mappings
