"""Runs: handing entries to workers, holding on to them, charging for them, ending them, taking them back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

import msgspec

from rota.errors import (
    LedgerInvalidAmount,
    RotaError,
    SchedAdmissionDenied,
    SchedInvalidPayload,
    SchedUnknownId,
)
from rota.kernel import affinity
from rota.kernel.claim_request import (
    Answer,
    Ask,
    Asked,
    Beat,
    Completion,
    Turnover,
    ask_of,
    check_terms,
    endings_of,
    pair_of,
    worker_of,
)
from rota.kernel.claims import CLAIM_TIMEOUT_S, ClaimPass, Terms
from rota.kernel.completion import Ending, Run, end_runs, not_live, put_back, runs_of
from rota.kernel.core import Core
from rota.kernel.due_summary import Pulse, pulse
from rota.kernel.ledger import Charged, Payer, record
from rota.kernel.maintenance import RECLAIM_MAX, Clockwork, expire_claims, sweep
from rota.kernel.results import Results
from rota.kernel.rows import NEEDS, needs_of, ready_entry_of, spent_of
from rota.model.checks import Checks
from rota.model.reasons import Blocking
from rota.model.work import ReadyEntry, Worker
from rota.store import Nudge, Transaction
from rota.store.statements import claims as sql
from rota.store.statements import queue as queue_sql

__all__ = ["Runs"]

NUDGES_MAX = 10_000  # workers whose nudges are remembered; the one first heard of is forgotten first
_queue = Checks("Queue", SchedInvalidPayload)
_amounts = Checks("Run", LedgerInvalidAmount)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Runs:
    """What workers do with entries."""

    def __init__(self, core: Core, results: Results) -> None:
        self._core = core
        self._results = results
        self._clockwork = Clockwork(core)
        self._nudges: dict[Worker, Nudge] = {}
        self._nudging = threading.Lock()  # of the nudges

    # --- handing out -----------------------------------------------------------------------------

    def claim(self, *, wait_s: float = 0.0, **asked: Unpack[Asked]) -> list[ReadyEntry]:
        """Hand ready entries to a worker and to nobody else; while there are none, wait up to `wait_s`."""
        return self._claim(ask_of(**asked), _queue.duration("wait_s", wait_s))

    def complete_and_claim(
        self, completions: Sequence[Completion], *, wait_s: float = 0.0, **asked: Unpack[Asked]
    ) -> Turnover:
        """End runs and take the next entries in one commit: what a worker does between two runs, at half the price.

        If there is nothing to take, the endings are durable before the waiting begins.
        """
        endings, ask = endings_of(completions), ask_of(**asked)
        _queue.duration("wait_s", wait_s)
        now = self._core.now()

        def work(tx: Transaction) -> Turnover:
            return Turnover(self.end(tx, endings, now), self.hand_out(tx, ask))

        turnover = self._core.write_steadily(work)
        if turnover.entries or wait_s <= 0:
            return turnover
        return Turnover(turnover.answers, self._claim(ask, wait_s))

    def _claim(self, ask: Ask, wait_s: float) -> list[ReadyEntry]:
        if wait_s > 0:
            return self.park(lambda tx: self.hand_out(tx, ask), ask, wait_s)
        return self._core.write_steadily(lambda tx: self.hand_out(tx, ask))

    def park(self, work: Callable[[Transaction], list[ReadyEntry]], ask: Ask, wait_s: float) -> list[ReadyEntry]:
        """Hand out entries; while there are none, wait for some, at most this long, or until nudged."""
        alike = ask.same, ask.kinds, ask.budgets_count
        return self._core.store.wait(work, wait_s, alike, self._nudge_of(ask.worker))

    def nudge(self, worker_id: str, incarnation: str = "") -> None:
        """Let a worker's waiting claim come back at once, empty-handed; if none waits, its next one does not."""
        self._core.store.nudge(self._nudge_of(worker_of(worker_id, incarnation)))

    def _nudge_of(self, worker: Worker) -> Nudge:
        with self._nudging:
            if worker not in self._nudges and len(self._nudges) >= NUDGES_MAX:
                del self._nudges[next(iter(self._nudges))]
            return self._nudges.setdefault(worker, Nudge())

    def hand_out(self, tx: Transaction, ask: Ask) -> list[ReadyEntry]:
        """Hand out entries inside a transaction."""
        now = self._core.now() if ask.now is None else ask.now
        beat = self._turn(tx, now, own_time=ask.now is None)
        terms = ask.terms(now)
        self._core.seen.saw(ask.worker.worker_id, now)
        affinity.has_asked(tx, terms, beat)
        tx.notes.speaks_for_others = beat.kept_until is None  # else the answer is this worker's own
        entries = ask.find(ClaimPass(tx, terms, beat), beat)
        if entries:
            self._foresee(beat, now + ask.timeout_s)
        else:
            tx.notes.due_at = beat.due_at
        return entries

    def _foresee(self, beat: Pulse, expires_at: float) -> None:
        """A claim changes one thing of the pulse, when the first claim expires; and contexts, if it uses requests."""
        if beat.any_context:
            self._core.memo.forget()
        elif beat.expires_at is None or expires_at < beat.expires_at:
            self._core.memo.move_pulse(beat._replace(expires_at=expires_at))

    def force_claim(
        self,
        sched_id: int,
        *,
        worker_id: str,
        by: str = "operator",
        admission_check: bool = True,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        now: float | None = None,
    ) -> ReadyEntry:
        """Hand out one entry whoever is first, if nothing blocks it; else `SchedAdmissionDenied` says all that does."""
        worker = worker_of(worker_id, incarnation)
        check_terms(admission_check, claim_timeout_s)
        _queue.text("by", by)
        if now is not None:
            _queue.instant("now", now)

        def work(tx: Transaction) -> ReadyEntry:
            at = self._core.now() if now is None else now
            beat = self._turn(tx, at, own_time=now is None)
            rows = tx.run(queue_sql.GET, (_queue.whole("sched_id", sched_id),))
            if not rows:
                raise SchedUnknownId(sched_id)
            claim = ClaimPass(tx, Terms(worker, 1, at, claim_timeout_s, (), admission_check), beat)
            blocked = claim.reasons(rows[0])
            if blocked:
                raise _denied(sched_id, blocked)
            affinity.release(tx, tx.run(queue_sql.KEPT, (sched_id,)), at)
            claim.offer(rows[0], because=f"forced by {by}")
            self._foresee(beat, at + claim_timeout_s)
            return claim.seal(policy="forced", forced_by=by)[0]

        return self._core.write(work)

    def peek(self, max_n: int = 1, *, kinds: Sequence[str] = (), worker_id: str = "peek") -> list[ReadyEntry]:
        """What a claim in strict order by a worker would be handed now, without handing it out."""
        ask = ask_of(worker_id=worker_id, max_n=max_n, kinds=kinds)

        def look(tx: Transaction) -> list[ReadyEntry]:
            beat, terms = pulse(tx), ask.terms(self._core.now())
            affinity.has_asked(tx, terms, beat)
            claim = ClaimPass(tx, terms, beat)
            claim.strict()
            return [ready_entry_of(each.row) for each in claim.taken]

        if self._core.read(lambda tx: pulse(tx).kept_until) is None:
            return self._core.read(look)
        return self._core.store.rehearse(look)  # what is kept for the worker has to be released first

    # --- holding on ------------------------------------------------------------------------------

    def heartbeat(self, sched_id: int, token: int, now: float | None = None) -> Beat:
        """Hold on to a live claim for another `claim_timeout_s`."""
        answer = self.heartbeat_many([(sched_id, token)], now)[0]
        if isinstance(answer, RotaError):
            raise answer
        return answer

    def heartbeat_many(self, claims: Sequence[tuple[int, int]], now: float | None = None) -> list[Beat | RotaError]:
        """Hold on to many; a claim that is lost has its error in its place."""
        _queue.sequence("claims", claims)
        wanted = [pair_of(each) for each in claims]
        if now is not None:
            _queue.instant("now", now)

        def work(tx: Transaction) -> list[Beat | RotaError]:
            at = self._core.now() if now is None else now
            if now is None:
                self._clockwork.notice_jump(tx, at)
            answers: list[Beat | RotaError] = []
            for sched_id, token in wanted:
                rows = tx.run(sql.HEARTBEAT, (at, sched_id, token))
                answers.append(Beat(rows[0][1], bool(rows[0][0])) if rows else _stale(tx, sched_id, token))
            return answers

        return self._core.write_steadily(work)  # a claim that lasts longer leaves the pulse too early, which is allowed

    def charge(self, sched_id: int, amounts: Mapping[str, int], *, token: int | None = None) -> dict[str, Charged]:
        """Record what a run used, at every level; the answer has the lines of its agent's own ledger."""
        _amounts.amounts("amounts", amounts)
        now = self._core.now()

        return self._core.write(lambda tx: self.spend(tx, self.live(tx, sched_id, token), amounts, now))

    def spend(self, tx: Transaction, run: Run, amounts: Mapping[str, int], now: float) -> dict[str, Charged]:
        """Charge a live run inside a transaction."""
        spent = dict(spent_of(run.spent_text))
        for dim, amount in amounts.items():
            spent[dim] = spent.get(dim, 0) + amount
        tx.run(sql.SPEND, (_encode(spent).decode(), run.sched_id))
        needs = needs_of(tx.run(queue_sql.GET, (run.sched_id,))[0][NEEDS])
        payer = Payer(run.pid, run.project_id, needs, run.sched_id)
        return record(tx, payer, dict(amounts), now, moves_flow=False)

    # --- ending ----------------------------------------------------------------------------------

    def complete(
        self,
        sched_id: int,
        exit_kind: str,
        *,
        token: int | None = None,
        result: Any = None,
        outcome: str | None = None,
    ) -> tuple[str, str]:
        """End a run; the answer is (state before, state after).

        With the live claim's token, a run that its spec wants retried goes back to `queued` while attempts are
        left. Without one the entry ends, as long as it is dispatched.
        """
        answer = self.complete_many([Completion(sched_id, exit_kind, token, result, outcome)])[0]
        if isinstance(answer, RotaError):
            raise answer
        return answer

    def complete_many(self, completions: Sequence[Completion]) -> list[Answer]:
        """End many runs in one commit; one that is refused has its error in its place and holds up nobody."""
        endings = endings_of(completions)
        now = self._core.now()
        return self._core.write_steadily(lambda tx: self.end(tx, endings, now))

    def end(self, tx: Transaction, endings: list[Ending], now: float) -> list[Answer]:
        """End runs inside a transaction."""
        ended = end_runs(tx, self._core, endings, now)
        if ended.changed_more:
            self._core.memo.forget()
        self._will_tell(tx, ended.final)
        return ended.answers

    def put_back(
        self,
        sched_id: int,
        *,
        token: int,
        verb: Literal["yield", "preempt"] = "yield",
        runnable_at: float | None = None,
    ) -> None:
        """Put a run back into the queue, at once or for later; it does not count as an attempt.

        A run that was asked to stop is not put back: it ends, cancelled.
        """
        _queue.one_of("verb", verb, ("yield", "preempt"))
        _queue.whole("token", token)
        now = self._core.now()
        at = now if runnable_at is None else _queue.instant("runnable_at", runnable_at)

        self._core.write(lambda tx: self.return_run(tx, self.live(tx, sched_id, token), verb, at, now))

    def return_run(
        self, tx: Transaction, run: Run, verb: Literal["yield", "preempt"], runnable_at: float, now: float
    ) -> None:
        """Put a live run back inside a transaction, or end it if it was asked to stop."""
        if run.cancel_requested:
            ending = Ending(run.sched_id, "cancelled", run.token)
            self._will_tell(tx, end_runs(tx, self._core, [ending], now).final)
        else:
            put_back(tx, run, verb, runnable_at, now)

    # --- taking back -----------------------------------------------------------------------------

    def gc_expired(self, now: float | None = None) -> int:
        """Sweep every waiting entry past its deadline; the answer is how many."""
        at = self._core.now(now)
        count = 0
        while True:
            swept = self._core.write(lambda tx: self._sweep(tx, at))
            if not swept:
                return count
            count += swept

    def gc_dispatched(self, stale_seconds: float, now: float | None = None) -> int:
        """Take back every claim whose last heartbeat is longer ago than this; the answer is how many."""
        _queue.duration("stale_seconds", stale_seconds)
        if now is not None:
            _queue.instant("now", now)

        def work(tx: Transaction) -> int:
            at = self._core.now() if now is None else now
            if now is None:
                self._clockwork.notice_jump(tx, at)
            return self._reclaim(tx, sql.STALE_CLAIMS, (at - stale_seconds,), at)

        count = 0
        while taken := self._core.write(work):
            count += taken
        return count

    def take_over(self, worker_id: str, incarnation: str) -> int:
        """A worker has come back to life: take back at once what its earlier lives held."""
        worker_of(worker_id, incarnation)
        now = self._core.now()
        count = 0
        while taken := self._core.write(
            lambda tx: self._reclaim(tx, sql.CLAIMS_OF_WORKER, (worker_id, incarnation), now)
        ):
            count += taken
        return count

    def upkeep(self, now: float | None = None) -> float | None:
        """Do what is due; the answer is when the next thing falls due."""

        if now is not None:
            _queue.instant("now", now)

        def work(tx: Transaction) -> float | None:
            at = self._core.now() if now is None else now
            beat = self._turn(tx, at, own_time=now is None)
            return beat.next_at

        return self._core.write(work)

    # --- inside ----------------------------------------------------------------------------------

    def _turn(self, tx: Transaction, now: float, *, own_time: bool) -> Pulse:
        beat, final = self._clockwork.turn(tx, now, own_time=own_time)
        self._will_tell(tx, final)
        return beat

    def _reclaim(self, tx: Transaction, statement: Any, parameters: tuple[Any, ...], now: float) -> int:
        sched_ids = [row[0] for row in tx.run(statement, (*parameters, RECLAIM_MAX))]
        self._will_tell(tx, expire_claims(tx, self._core, sched_ids, now))
        return len(sched_ids)

    def _sweep(self, tx: Transaction, now: float) -> int:
        swept, cancelled = sweep(tx, self._core, now)
        self._will_tell(tx, swept + cancelled)
        return len(swept)

    def _will_tell(self, tx: Transaction, final: list[int]) -> None:
        """Once it is durable, wake whoever waits for these."""
        if final:
            tx.notes.after.append(lambda: self._results.tell(final))

    def live(self, tx: Transaction, sched_id: int, token: int | None) -> Run:
        """A run that is under way, and whose claim is the caller's if it says so."""
        if token is not None:
            _queue.whole("token", token)
        run = runs_of(tx, [_queue.whole("sched_id", sched_id)]).get(sched_id)
        if run is None:
            raise SchedUnknownId(sched_id)
        if run.state != "dispatched" or (token is not None and run.token != token):
            raise _stale(tx, sched_id, token)
        return run


def _stale(tx: Transaction, sched_id: int, token: int | None) -> RotaError:
    run = runs_of(tx, [sched_id]).get(sched_id)
    return SchedUnknownId(sched_id) if run is None else not_live(run, token)


def _denied(sched_id: int, blocked: list[Blocking]) -> SchedAdmissionDenied:
    words = "; ".join(reason.sentence() for reason in blocked)
    return SchedAdmissionDenied(
        f"entry {sched_id} may not run: {words}",
        sched_id=sched_id,
        reasons=[msgspec.to_builtins(reason) for reason in blocked],
    )
