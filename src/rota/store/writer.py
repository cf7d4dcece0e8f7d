"""Who commits, when, and with whom.

A commit costs one flush of the disk, however much is in it. So work that arrives while a commit is under
way should share the next one, and work that arrives alone should not wait for company. Three rules:

1. *Alone, you commit yourself.* A caller that finds nobody writing runs its work on its own thread: no
   hand-over, no waiting for another thread to wake.
2. *In company, you share.* A caller that finds somebody writing leaves its request in line. The writer
   thread takes the whole line as one group: each request behind its own savepoint, one commit for all.
   Nobody is answered before the commit is durable, and a request that fails undoes itself alone.
3. *Those who wait for work ride along.* A request that found nothing yet (a claim on an empty queue) is
   parked here. Whatever is written next that may change its answer says so (`wake`), and the parked ones
   are tried again inside that very transaction, oldest first. So a waiting worker is handed an entry by
   the commit that enqueued it. Waiters that asked the same question are not all tried: when one gets
   nothing, the rest would get nothing too. A group runs in the order writers, parked ones, newcomers who
   would wait: so a newcomer sees what its own group brought, and takes nothing from those before it.

Time is one more thing that can change an answer: work says when it would (`due_at`), and the writer
thread tries the parked ones again then. It waits on the clock it was given, so a manual clock moves it.

A full disk, or any failure of the commit itself, undoes the group. Its requests are then run again one
by one and without the parked ones, so that each gets a true answer of its own; the parked ones are tried
after them, and again every `RETRY_S` while that fails.

Not every caller has a thread to wait on. Work can also be *posted*: it stands in line, shares commits and is parked
like any other, and whoever posted it is told when it is answered.

One mutex guards the line, the parked ones and the place of every request; each request has its own
condition on that mutex, so an answer wakes one thread and no herd. The *turn* is a second lock, held by
whoever is writing; the mutex is never held while anybody writes. What is called under the turn (work, and
those who are told of a commit) may read, but cannot write: it would wait for itself, so it is refused.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rota.clock import Clock
from rota.errors import StoreError, StoreUnavailable
from rota.store.engine import Engine, GroupFailed
from rota.store.protocol import Notes, Nudge, Transaction
from rota.store.requests import Place, Posted, Request

__all__ = ["GROUP_MAX", "NAP_S", "PAUSE_S", "RETRY_S", "Engine", "GroupFailed", "Writer"]

GROUP_MAX = 256  # requests in one commit
RETRY_S = 1.0  # how long the parked ones wait after the store itself has failed
PAUSE_S = 0.01  # between two tries of those whose time has come and who still got nothing
NAP_S = 10.0  # how late the writer thread notices that the wall clock was moved
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Writer:
    """The one way to write."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.listeners: tuple[Callable[[], None], ...] = ()  # called after every commit; they must not write
        self._engine = engine
        self._clock = clock
        self._turn = threading.Lock()  # held by whoever is writing
        self._mutex = threading.Lock()  # guards all that follows, and the place of every request
        self._bell = threading.Condition(self._mutex)  # wakes the writer thread
        self._line: deque[Request[Any]] = deque()
        self._parked: dict[Request[Any], None] = {}  # oldest first
        self._due_at: float | None = None  # when time alone may give a parked one its answer
        self._company = False  # the writer thread is about to write, or was not alone when it last did: stand in line
        self._holder: int | None = None  # the thread that has the turn
        self._elsewhere = False  # another process has written, and nobody asked about it yet
        self._thread: threading.Thread | None = None
        self._closed = False

    # --- for callers -----------------------------------------------------------------------------

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work and answer once it is durable."""
        if not (self._company or self._line or self._parked) and self._turn.acquire(blocking=False):
            try:
                if not (self._parked or self._closed):  # looked at again, now that nobody else has the turn
                    return self._run_alone(work)
            finally:
                self._turn.release()
        request = Request(work)
        self._submit(request)
        return request.result()

    def wait(
        self, work: Callable[[Transaction], list[T]], timeout_s: float, same: Hashable, nudge: Nudge | None = None
    ) -> list[T]:
        """Like write, but while the answer is empty stay parked, at most this long, or until nudged."""
        hash(same)  # here, where it is the caller's own fault
        give_up_at = self._clock.monotonic() + timeout_s
        request = Request(work, parks=timeout_s > 0, same=same)
        request.nudge = nudge
        self._submit(request, give_up_at)
        return request.result() or []

    def nudge(self, nudge: Nudge) -> None:
        """Let whoever is parked with this nudge go; if nobody is, the next who would be."""
        with self._mutex:
            nudge.given = True
            for request in [each for each in self._parked if each.nudge is nudge]:
                del self._parked[request]
                self._settle(request)

    def post(self, requests: Sequence[Posted[Any]]) -> None:
        """Leave work in line, together, without waiting for it; each is told when it is answered."""
        self._check_no_turn()
        with self._mutex:
            self._check_open()
            self._wake_thread()
            for request in requests:
                request.place = Place.IN_LINE
            self._line.extend(requests)

    def run(self, requests: Sequence[Posted[Any]]) -> bool:
        """Run posted work here and now, as one group, if nobody else writes; the answer is whether it was."""
        if self._company or self._line or len(requests) > GROUP_MAX or not self._turn.acquire(blocking=False):
            return False
        try:
            self._check_open()
            self._run_group(list(requests))
        finally:
            self._turn.release()
        return True

    def withdraw(self, request: Posted[Any]) -> None:
        """Let posted work wait no longer: if it is not answered yet, it is now or in a moment, with what it has."""
        with self._mutex:
            request.given_up = True
            if request.place is Place.PARKED:
                del self._parked[request]
                self._move(request, Place.ANSWERED)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep everybody else from writing meanwhile."""
        if self._has_turn():  # whoever is told of a commit may look at it
            yield
            return
        with self._turn:
            self._check_open()
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    def look_elsewhere(self) -> bool:
        """Whether another process has written since the last look; if so the parked ones are tried again."""
        with self._turn:
            if self._closed:
                return False
            if self._changed_elsewhere() and self._parked:
                self._run_group([])
            changed, self._elsewhere = self._elsewhere, False
            return changed

    def settled(self) -> None:
        """Come back when the group whose answers are being given has all of them; that is never long."""
        with self._mutex:
            pass

    @property
    def parked(self) -> int:
        """How many wait for work."""
        return len(self._parked)

    def close(self) -> None:
        """Take nothing more. Those who still wait are told."""
        self._check_no_turn()
        with self._mutex:
            self._closed = True
            for request in [*self._line, *self._parked]:
                self._refuse(request)
            self._line.clear()
            self._parked.clear()
            self._bell.notify()
        if self._thread is not None:
            self._thread.join()
        with self._turn:  # whoever is writing finishes first
            pass

    def _submit(self, request: Request[Any], give_up_at: float | None = None) -> None:
        try:
            self._serve_or_line_up(request)
            if request.bell is not None:  # else it was answered here and now
                self._await(request, request.bell, give_up_at)
        except BaseException:
            if request.bell is not None:
                self._abandon(request)
            raise

    def _serve_or_line_up(self, request: Request[Any]) -> None:
        if self._company or self._line or not self._turn.acquire(blocking=False):
            self._stand_in_line(request)
        else:
            try:
                self._check_open()
                self._run_group([request])
            finally:
                self._turn.release()

    def _stand_in_line(self, request: Request[Any]) -> None:
        self._check_no_turn()
        with self._mutex:
            self._check_open()
            self._wake_thread()  # first: where no thread can be started, nobody may be left in line
            request.place = Place.IN_LINE
            request.bell = threading.Condition(self._mutex)
            self._line.append(request)

    def _await(self, request: Request[Any], bell: threading.Condition, give_up_at: float | None) -> None:
        """Wait for the answer. Only a parked request may be given up: one that is being run is about to be answered."""
        with self._mutex:
            while request.place is not Place.ANSWERED:
                if request.place is not Place.PARKED or give_up_at is None:
                    bell.wait()
                    continue
                left_s = give_up_at - self._clock.monotonic()
                if left_s <= 0:
                    self._parked.pop(request, None)
                    return
                self._clock.wait(bell, min(left_s, threading.TIMEOUT_MAX))

    def _abandon(self, request: Request[Any]) -> None:
        """Its caller was interrupted: nobody will hear the answer, so let it not happen if it need not."""
        with self._mutex:
            request.parks = False  # if it is being run just now, it is not parked again
            self._parked.pop(request, None)
            if request in self._line:
                self._line.remove(request)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", hint="Open it again.")

    def _has_turn(self) -> bool:
        return self._holder == threading.get_ident()

    def _check_no_turn(self) -> None:
        if self._has_turn():
            hint = "Use the transaction that is open; whoever is told of a commit leaves writing to another thread."
            raise StoreError("a write inside a write would wait for itself", hint=hint)

    # --- the writer thread -----------------------------------------------------------------------

    def _wake_thread(self) -> None:
        """Wake the writer thread, or start it. The mutex is held."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._serve, name="rota-writer", daemon=True)
            thread.start()
            self._thread = thread
        self._bell.notify()

    def _serve(self) -> None:
        while True:
            with self._mutex:
                while not (self._closed or self._line or self._is_due()):
                    self._clock.wait(self._bell, self._until_due_s())
                if self._closed:
                    return
                self._company = True  # else a caller that writes without a pause could keep the turn from us
            with self._turn:
                group = self._take_line()
                if group or self._parked:
                    self._run_group(group)

    def _is_due(self) -> bool:
        return bool(self._parked) and self._due_at is not None and self._due_at <= self._clock.now()

    def _until_due_s(self) -> float | None:
        if not self._parked or self._due_at is None:
            return None
        return min(max(0.0, self._due_at - self._clock.now()), NAP_S)

    def _take_line(self) -> list[Request[Any]]:
        """Everybody in line, up to the limit. An empty group is run for the parked ones alone."""
        with self._mutex:
            group = [self._line.popleft() for _ in range(min(len(self._line), GROUP_MAX))]
            for request in group:
                request.place = Place.RUNNING
            self._company = len(group) > 1
            return group

    # --- one request, the usual case -------------------------------------------------------------

    def _run_alone(self, work: Callable[[Transaction], T]) -> T:
        """What `_run_group` does for one who writes while nobody waits, in one step. The turn is held.

        It matters: whoever comes back from a flush finds its caches cold, and pays double for every call on the way.
        """
        self._holder = threading.get_ident()
        notes, engine = Notes(), self._engine
        try:
            try:
                engine.begin()
                answer = work(engine.transaction(notes))
                engine.commit()
            except BaseException as problem:
                return self._make_good(work, notes, problem)
            if not engine.alone or self.listeners or notes.after:
                _call_each((engine.ring, *self.listeners, *notes.after))
            return answer
        finally:
            self._holder = None

    def _make_good(self, work: Callable[[Transaction], T], notes: Notes, problem: BaseException) -> T:
        """One who wrote alone met a problem: undo it and let that be its answer, or try once more."""
        request = Request(work)
        request.notes = notes
        undone = self._engine.rollback()
        if isinstance(problem, GroupFailed):
            self._undo([request], [])
            self._commit_alone(request)
        elif undone:
            self._fail(request, problem)
        else:  # an interrupt that came when the commit was done: it is in the file, and told
            request.error, request.kept = problem, True
        self._tell([request])
        return request.result()

    # --- one group -------------------------------------------------------------------------------

    def _run_group(self, group: list[Request[Any]]) -> None:
        """Run a group and the parked ones it wakes, commit, tell, and answer. The turn is held."""
        self._holder = threading.get_ident()
        try:
            done = self._attempt(group)
            try:
                self._tell(done)
            finally:
                self._answer(done)
        finally:
            self._holder = None

    def _attempt(self, group: list[Request[Any]]) -> list[Request[Any]]:
        """Give everybody in the group an answer: together, or else one by one."""
        try:
            return self._commit(group)
        except GroupFailed:
            done = [self._commit_alone(request) for request in group]
        except BaseException as error:  # it could not even begin, or the program is being stopped
            done = [self._fail(request, error) for request in group]
        self._try_parked_again(later=all(request.error is not None for request in done))
        return done

    def _commit(self, group: list[Request[Any]], *, alone: bool = False) -> list[Request[Any]]:
        """One transaction: who writes, the parked ones they may have woken, newcomers. The answer is in that order."""
        rides = bool(self._parked) and not alone
        shared = len(group) != 1 or rides
        writers = [request for request in group if not request.parks] if shared else group
        newcomers = [request for request in group if request.parks] if shared else []
        riders: list[Request[Any]] = []
        self._engine.begin()
        try:
            for request in writers:
                self._run(request, shared=shared)
            if rides and self._wakes(group):
                riders = self._take_parked()
                self._run_riders(riders)
            for request in newcomers:
                self._run(request, shared=shared)
            if not shared and group[0].error is not None:
                self._engine.rollback()
            else:
                self._engine.commit()
        except BaseException as problem:
            if self._engine.rollback() or isinstance(problem, GroupFailed):
                self._undo(group, riders)
                raise
            # an interrupt that came when the commit was done: everybody gets what is in the file
            if len(group) == 1:
                group[0].error = problem
        return [*writers, *riders, *newcomers]

    def _wakes(self, group: list[Request[Any]]) -> bool:
        return not group or any(request.notes.wake for request in group) or self._changed_elsewhere()

    def _changed_elsewhere(self) -> bool:
        """Whether another process has written since this was last asked; `look_elsewhere` hears of it too."""
        changed = self._engine.changed_elsewhere()
        self._elsewhere = self._elsewhere or changed
        return changed

    def _commit_alone(self, request: Request[Any]) -> Request[Any]:
        """The group failed: run one of its requests by itself, so that its answer is its own."""
        try:
            self._commit([request], alone=True)
        except GroupFailed as failure:
            hint = "Make room or repair the disk, then call again."
            return self._fail(request, StoreUnavailable(f"nothing was written: {failure}", hint=hint))
        except BaseException as error:  # whatever it is, the others still want their answers
            return self._fail(request, error)
        return request

    def _run(self, request: Request[Any], *, shared: bool) -> None:
        """Run one request. Its own error is its answer and undoes what it did, nothing else."""
        request.answer, request.error, request.notes = None, None, Notes()
        if shared:  # alone, undoing it is undoing all
            self._engine.savepoint()
        try:
            request.answer = request.work(self._engine.transaction(request.notes))
            request.kept = True
        except GroupFailed:
            raise
        except BaseException as error:  # it belongs to whoever asked
            if not isinstance(error, Exception) and threading.current_thread() is not self._thread:
                raise  # an interrupt, which belongs to this thread, whoever's work is being run
            self._fail(request, error)
            if shared:
                self._engine.rollback_to()
        if shared:
            self._engine.release()

    def _fail(self, request: Request[Any], error: BaseException) -> Request[Any]:
        """Make an error the answer. What the work did is undone, and it is told so."""
        _call_each(request.notes.undone)
        request.answer, request.error, request.kept, request.notes = None, error, False, Notes()
        return request

    def _undo(self, group: list[Request[Any]], riders: list[Request[Any]]) -> None:
        """Nothing of this became durable: tell it so, and let the riders wait on as before."""
        for request in [*group, *riders]:
            _call_each(request.notes.undone)
            request.answer, request.error, request.kept, request.notes = None, None, False, Notes()
        with self._mutex:
            for rider in riders:
                self._settle(rider)

    def _tell(self, done: list[Request[Any]]) -> None:
        """It is durable: tell other processes, those who listen here, and whoever the work named."""
        kept = [request for request in done if request.kept]
        if kept:
            _call_each((self._engine.ring, *self.listeners))
        for request in kept:
            if request.notes.after:
                _call_each(request.notes.after)

    def _answer(self, done: list[Request[Any]]) -> None:
        alone = len(done) == 1 and done[0].bell is None and done[0].told is None and not done[0].waits
        if alone:  # on its own thread: nobody has to be woken
            done[0].place = Place.ANSWERED
            return
        with self._mutex:
            again = any(request.parks and request.notes.wake and not request.waits for request in done)
            for request in done:
                self._settle(request)
            if again:  # one who waited got its answer, and may have changed the answer of those tried before it
                self._try_at(self._clock.now())

    # --- the parked ones -------------------------------------------------------------------------

    def _take_parked(self) -> list[Request[Any]]:
        with self._mutex:
            riders = list(self._parked)
            self._parked.clear()
            self._due_at = None
            for rider in riders:
                rider.place = Place.RUNNING
            return riders

    def _run_riders(self, riders: list[Request[Any]]) -> None:
        """Try the parked ones, oldest first; whoever asks what was just answered with nothing is spared."""
        in_vain: dict[Hashable, float | None] = {}  # question → when to ask it again
        for rider in riders:
            if rider.given_up or not rider.parks:  # interrupted a moment ago: let it not take what nobody would hear of
                continue
            if rider.same in in_vain:
                rider.notes.due_at = in_vain[rider.same]
                continue
            self._run(rider, shared=True)
            if rider.waits and rider.same is not None and rider.notes.speaks_for_others:
                in_vain[rider.same] = rider.notes.due_at

    def _settle(self, request: Request[Any]) -> None:
        """Answer a request, or park it if it would rather wait. The mutex is held."""
        if not request.waits:
            self._move(request, Place.ANSWERED)
        elif request.nudge is not None and request.nudge.given:
            request.nudge.given = False
            self._move(request, Place.ANSWERED)
        elif self._closed:
            self._refuse(request)
        else:
            self._park(request)

    def _park(self, request: Request[Any]) -> None:
        """Let a request wait. The mutex is held."""
        self._parked[request] = None
        due_at, request.notes = request.notes.due_at, Notes()  # what it noted so far has been told
        if request.bell is None and request.told is None:
            request.bell = threading.Condition(self._mutex)
        self._move(request, Place.PARKED)
        if due_at is not None and not due_at > self._clock.now():  # put so that what is no number is paused too
            due_at = self._clock.now() + PAUSE_S
        if due_at is not None and (self._due_at is None or due_at < self._due_at):
            self._try_at(due_at)

    def _try_at(self, due_at: float) -> None:
        """Have the writer thread try the parked ones then. The mutex is held."""
        if self._parked:
            self._due_at = due_at
            self._wake_thread()

    def _try_parked_again(self, *, later: bool) -> None:
        """What might have woken the parked ones was lost with its group: let them be tried, but not without a pause."""
        with self._mutex:
            self._try_at(self._clock.now() + (RETRY_S if later else 0.0))

    def _refuse(self, request: Request[Any]) -> None:
        """Tell a caller that it waits in vain. The mutex is held."""
        request.error = StoreUnavailable("the store was closed", hint="Open it again.")
        self._move(request, Place.ANSWERED)

    def _move(self, request: Request[Any], place: Place) -> None:
        """Put a request somewhere else and tell its caller. The mutex is held."""
        request.place = place
        if request.bell is not None:
            request.bell.notify()
        elif request.told is not None and place is Place.ANSWERED:
            request.told()


def _call_each(calls: Iterable[Callable[[], object]]) -> None:
    """Call each. One that fails is on record and harms neither the others nor the answer, which stands."""
    for call in calls:
        try:
            call()
        except Exception:
            _log.exception("%r failed after its commit was settled", call)
