"""The runs of one supervisor that are on a Ray cluster, and the thread that collects what they send.

    held        claimed; the cluster has no room yet, or there is no connection yet
    submitted   a task of Ray, which may still wait there
    placed      the run has told its node, or has ended

The connection is made when the first run is held, by the collector thread. If it is lost, every submitted run has
crashed, the held ones go back to the queue, and the next one that is claimed connects again. A run that other programs
on the cluster keep waiting for longer than `pending_s` is withdrawn and goes back to the queue, too. Nothing is
submitted twice within a claim.

A run is stopped like any other: by a message, then by Ray's cancel, then by force. One that is not placed has no
process to read a message: it begins with the cancel.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from rota.decoding import decode_json
from rota.errors import LimitExceeded, RotaError
from rota.fault_log import FaultLog
from rota.fleet.live_run import LiveRun
from rota.fleet.on_ray.driver_link import DriverLink
from rota.fleet.on_ray.held_usage import HeldUsage
from rota.fleet.on_ray.room import ClusterNode, Room, lack
from rota.fleet.run_cpu import NO_GROUPS
from rota.fleet.runners.context import answer_request
from rota.fleet.runners.contract import RegisteredFunctions, RunOutcome, registered_function
from rota.fleet.runners.resources import RunnerResources
from rota.model.checks import NOTE_CHARS_MAX
from rota.model.ray import RayCluster, RaySettings, RayShape, kind_of, shape_of
from rota.model.workers import PlacementProblem
from rota.store.author import keeping_author

__all__ = ["SHAPES_MAX", "RayRuns"]

SHAPES_MAX = 63  # shapes of one supervisor: its slots have at most 64 kinds
RECONNECT_S = 10.0  # after which an entry is tried again that found no cluster
WITHDRAWN_S = 10.0  # after which an entry is tried again that was withdrawn
WAITS_MAX = 256  # requests of runs that wait at a time, each on a thread
LOST = "the connection to the Ray cluster was lost"
_WAITING = frozenset({"acquire", "wait_for"})  # requests that may take long
_log = logging.getLogger("rota.fleet")


class _Run:
    """One run on the cluster."""

    __slots__ = (
        "end",
        "is_placed",
        "is_withdrawn",
        "key",
        "live",
        "node",
        "received",
        "result",
        "shape",
        "since",
        "waits",
    )

    def __init__(self, live: LiveRun, shape: RayShape, end: Callable[[RunOutcome], None]) -> None:
        self.live = live
        self.shape = shape
        self.end = end
        self.key = f"{live.entry.sched_id}:{live.token}"
        self.since = 0.0  # on the advancing clock: when it was held, then when it was submitted
        self.node = ""  # the id of the node for which it was submitted
        self.is_placed = False
        self.is_withdrawn = False
        self.waits = 0  # requests that wait: meanwhile Ray lets others use its CPUs
        self.received = 0  # messages
        self.result: tuple[int, RunOutcome, bytes] | None = None  # how many messages it sent, outcome, last output

    @property
    def needs(self) -> RayShape:
        """What it uses of its node now."""
        resources = self.shape.resources
        return RayShape(tuple(each for each in resources if each[0] != "CPU")) if self.waits else self.shape


class RayRuns:
    """Starts runs on a cluster and ends them when their tasks have ended."""

    def __init__(
        self,
        resources: RunnerResources,
        cluster: RayCluster,
        functions: RegisteredFunctions,
        *,
        on_room: Callable[[], None],
        on_problems: Callable[[], None],
    ) -> None:
        """`on_room` is called when other entries may fit than before, `on_problems` when `problems` has changed."""
        self._resources = resources
        self._clock = resources.clock
        self._cluster = cluster
        self._functions = functions
        self._on_room = on_room
        self._on_problems = on_problems
        self._usage = HeldUsage()
        self._waits = threading.Semaphore(WAITS_MAX)
        self._faults = FaultLog("rota.fleet")  # by kind of event
        self._folders = _import_folders()
        self._lock = threading.Lock()  # guards all below
        self._shapes: set[RayShape] = set()
        self._room = Room()
        self._held: deque[_Run] = deque()
        self._submitted: dict[str, _Run] = {}
        self._link: DriverLink | None = None
        self._is_ready = False
        self._is_doubtful = False  # a node has died, and the cluster has reported nothing since
        self._is_closed = False
        self._sent_functions: dict[int, int] = {}  # by agent
        self._pickled: dict[int, bytes] = {}  # by agent
        self._unreachable: str | None = None  # why there is no connection
        self._retry_at = -math.inf  # on the advancing clock: when to connect again
        self._withdrawn: dict[str, str] = {}  # why the last run of a kind was withdrawn
        self._told: tuple[PlacementProblem, ...] = ()
        self._collector: threading.Thread | None = None

    # --- for the slot loop -----------------------------------------------------------------------

    def add_shape(self, shape: RayShape) -> bool:
        """Run entries of this shape, too; returns whether it is new. A shape past `SHAPES_MAX` is refused."""
        with self._lock:
            if shape in self._shapes:
                return False
            if len(self._shapes) >= SHAPES_MAX:
                raise LimitExceeded("shapes_max", SHAPES_MAX, SHAPES_MAX + 1, field="resources")
            self._shapes.add(shape)
            return True

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of all shapes."""
        with self._lock:
            return tuple(sorted(kind_of(shape) for shape in self._shapes))

    def claimable(self, most: int) -> tuple[tuple[str, ...], int]:
        """Return the kinds to claim now, and how many entries at most."""
        with self._lock:
            if not self._is_ready:
                asleep = not self._held and not self._is_closed and self._clock.monotonic() >= self._retry_at
                return (tuple(sorted(map(kind_of, self._shapes))), min(most, 1)) if asleep else ((), 0)
            if self._is_doubtful:
                return (), 0
            shapes, count = self._room.claimable(self._shapes, [run.shape for run in self._held], most)
            return (tuple(sorted(map(kind_of, shapes))), count) if count > 0 else ((), 0)

    def start(self, live: LiveRun, end: Callable[[RunOutcome], None]) -> None:
        """Start a run when the cluster has room for it; `end` is called when it has ended."""
        settings = live.assignment.settings.ray or RaySettings()
        run = _Run(live, shape_of(live.entry.kind) or settings.shape, end)
        problem = self._pickle(live)
        if problem is not None:
            end(problem)
            return
        live.started(_RayStopHandle(self, run))
        with self._lock:
            is_over = live.stop_reason is not None or self._is_closed
            if not is_over:
                run.since = self._clock.monotonic()
                self._held.append(run)
                if not self._is_ready and self._collector is None:
                    self._collector = threading.Thread(
                        target=keeping_author(self._collect), name="rota-ray", daemon=True
                    )
                    self._collector.start()
        if is_over:
            end(RunOutcome(exit_kind="cancelled"))
            return
        self._submit_held()

    def problems(self) -> tuple[PlacementProblem, ...]:
        """Return why entries of some kinds are not placed now."""
        with self._lock:
            return self._problems()

    def demand(self, queued: Mapping[RayShape, int], most: int) -> None:
        """Tell the cluster's autoscaler what runs, is held and waits in the queue."""
        with self._lock:
            runs = [run.shape for run in (*self._submitted.values(), *self._held)]
            waiting = [shape for shape, count in queued.items() for _ in range(min(count, most))]
            bundles = [shape.needs for shape in (*runs, *waiting) if shape.resources][:most]
            if self._is_ready and self._link is not None and not self._is_closed:
                self._link.send("demand", bundles)

    def retry_in_s(self) -> float | None:
        """How long until the cluster is tried again; None if it is not lost."""
        with self._lock:
            if self._unreachable is None or self._collector is not None:
                return None
            return max(0.0, self._retry_at - self._clock.monotonic())

    def release_held(self) -> None:
        """Return what is not submitted yet to the queue: the supervisor stops claiming."""
        with self._lock:
            held, self._held = list(self._held), deque()
        for run in held:
            run.end(RunOutcome(yield_after_s=0.0))

    def close(self) -> None:
        """Disconnect. No run is in progress."""
        with self._lock:
            self._is_closed = True
            link, collector = self._link, self._collector
            if link is not None and self._cluster.tell_demand and self._is_ready:
                link.send("demand", [])  # Ray keeps what it was told: the cluster would never shrink
        if link is not None:
            link.close()
        if collector is not None:
            collector.join()

    # --- submitting ------------------------------------------------------------------------------

    def _submit_held(self) -> None:
        """Submit the held runs that fit beside what is set aside for those before them."""
        with self._lock:
            if not self._held or not self._is_ready or self._is_doubtful or self._link is None:
                return
            held, self._held = self._held, deque()
            impossible = []
            for run, node_id in zip(held, self._room.places([run.shape for run in held]), strict=True):
                if node_id is not None:
                    self._submit(run, node_id, self._link)
                elif lack(run.shape, self._room.nodes) is None:
                    self._held.append(run)
                else:
                    impossible.append(run)  # a node has left the cluster
        for run in impossible:
            run.end(RunOutcome(yield_after_s=RECONNECT_S))
        if impossible:
            self._tell_problems()

    def _submit(self, run: _Run, node_id: str, link: DriverLink) -> None:
        """Submit a run for a node. The lock is held."""
        self._room.take(run.shape, node_id)
        self._submitted[run.key] = run
        run.node, run.since = node_id, self._clock.monotonic()
        assignment = run.live.assignment
        pid = assignment.agent.pid
        function = None
        if pid in self._pickled and assignment.settings.function is None:
            if pid not in self._sent_functions:
                self._sent_functions[pid] = len(self._sent_functions)
                link.send("function", self._sent_functions[pid], self._pickled[pid])
            function = self._sent_functions[pid]
        link.send("run", run.key, msgspec.json.encode(assignment), function, self._folders, self._options(run))

    def _options(self, run: _Run) -> dict[str, Any]:
        """Return Ray's options of a task."""
        needs = run.shape.needs
        options: dict[str, Any] = {
            "num_cpus": needs.pop("CPU", 0.0),
            "num_gpus": needs.pop("GPU", 0.0),
            "name": f"rota:{run.live.assignment.agent.name}",
        }
        if "memory" in needs:
            options["memory"] = int(needs.pop("memory"))
        if needs:
            options["resources"] = needs
        settings = run.live.assignment.settings.ray
        if settings is not None and settings.runtime_env:
            options["runtime_env"] = settings.runtime_env
        options["node"] = run.node, run.shape.node is None  # if the node leaves now, may it run on another?
        return options

    def _pickle(self, live: LiveRun) -> RunOutcome | None:
        """Pickle a registered function, once; if that cannot be done, return how the run ends."""
        settings, agent = live.assignment.settings, live.assignment.agent
        if settings.executes != "callable" or settings.function is not None or agent.pid in self._pickled:
            return None
        function = registered_function(self._functions, agent)
        if function is None:
            error = f"no function is registered for agent {agent.name!r}"
            return RunOutcome(exit_kind="failed", outcome="not_found", result={"error": error})
        try:
            # only for functions that nodes cannot import: this loads Ray here, too
            self._pickled[agent.pid] = import_module("ray.cloudpickle").dumps(function)
        except Exception as problem:  # whatever a function refers to
            error = f"agent {agent.name!r} cannot run on Ray: its function cannot be pickled: {problem}"
            return RunOutcome(exit_kind="failed", outcome="unpicklable", result={"error": error})
        return None

    # --- stopping --------------------------------------------------------------------------------

    def stop(self, run: _Run, reason: str) -> bool:
        """Ask a run to stop; False if it is not placed yet."""
        with self._lock:
            is_held = run in self._held
            if is_held:
                self._held.remove(run)
            elif run.is_placed and self._link is not None:
                self._link.send("parcels", [[run.key, reason]])
        if is_held:
            run.end(RunOutcome(exit_kind="cancelled"))
            self._on_room()
        return is_held or run.is_placed

    def cancel(self, run: _Run, *, force: bool) -> bool:
        """Cancel the task of a run."""
        with self._lock:
            is_submitted = run.key in self._submitted and self._link is not None
            if is_submitted and self._link is not None:
                self._link.send("cancel", run.key, force)
        return is_submitted

    # --- the collector ---------------------------------------------------------------------------

    def _collect(self) -> None:
        """Connect, and handle what the driver reports until the connection ends."""
        told = LOST
        try:
            address = self._cluster.address or _address_of_environment()
            link = DriverLink(self._resources, address, linger_s=self._cluster.linger_s)
            with self._lock:
                self._link = link
                is_closed = self._is_closed
            if is_closed:
                link.release()
                return
            for event in link.events():
                if event is not None and event[0] in ("failed", "lost"):
                    told = event[1]
                    break
                kind = None if event is None else event[0]
                try:
                    self._handle(event)
                except Exception as problem:  # a defect: the other runs depend on this thread
                    self._faults.failed("runs on Ray", problem, then="continuing", of=kind)
                else:
                    self._faults.worked(kind)
            link.release()
        except RotaError as problem:
            told = f"no driver process for Ray can be started: {problem.message}"
        self._disconnected(told)

    def _disconnected(self, told: str) -> None:
        """End all runs: the submitted ones have crashed, the held ones go back to the queue."""
        with self._lock:
            crashed, held = list(self._submitted.values()), list(self._held)
            self._submitted.clear()
            self._held.clear()
            self._sent_functions.clear()
            self._room.forget()
            self._link, self._is_ready, self._collector = None, False, None
            is_closed = self._is_closed
            self._unreachable = told[:NOTE_CHARS_MAX]
            self._retry_at = self._clock.monotonic() + RECONNECT_S
        if not is_closed:
            _log.warning("%s; %s runs have crashed", told, len(crashed))
        for run in crashed:
            run.end(RunOutcome(exit_kind="crashed", outcome="cluster_lost", result={"error": told}))
        for run in held:
            run.end(RunOutcome(yield_after_s=RECONNECT_S))
        if not is_closed:
            self._tell_problems()

    def _handle(self, event: list[Any] | None) -> None:
        match event:
            case None:
                self._withdraw()
            case ["view", nodes]:
                self._see([ClusterNode(*each) for each in nodes])
            case ["message", key, number, operation, body]:
                self._message(key, number, operation, body)
            case ["ended", key, body, node, sent, output]:
                self._ended(key, decode_json(body, RunOutcome), node, sent, output)
            case ["broke", key, exit_kind, outcome, error]:
                self._broke(key, exit_kind, outcome, error)
            case _:
                pass  # ready: the nodes follow

    def _see(self, nodes: Sequence[ClusterNode]) -> None:
        with self._lock:
            self._room.see(nodes)
            self._is_ready, self._is_doubtful, self._unreachable = True, False, None
        self._withdraw()
        self._submit_held()
        self._tell_problems()
        self._on_room()

    def _withdraw(self) -> None:
        """Return to the queue what other programs on the cluster have kept waiting for too long."""
        with self._lock:
            if not self._is_ready:
                return
            oldest_at = self._clock.monotonic() - self._cluster.pending_s
            submitted = [
                run
                for run in self._submitted.values()
                if not run.is_placed
                and not run.is_withdrawn
                and run.since <= oldest_at
                and self._room.keeps_waiting(run.shape, run.node)
            ]
            held = [run for run in self._held if run.since <= oldest_at and self._room.is_kept_by_others(run.shape)]
            for run in (*submitted, *held):
                run.is_withdrawn = True
                self._withdrawn[kind_of(run.shape)] = (
                    f"the last one was withdrawn after {self._cluster.pending_s:g} s, because other programs on the "
                    f"cluster use what it needs: {run.shape.sentence()}"
                )
            for run in held:
                self._held.remove(run)
            for run in submitted:
                if self._link is not None:
                    self._link.send("cancel", run.key, False)
        for run in held:
            self._end_withdrawn(run)

    def _end_withdrawn(self, run: _Run) -> None:
        run.live.log(f"rota: {self._withdrawn.get(kind_of(run.shape), 'withdrawn')}\n".encode())
        self._tell_problems()
        run.end(RunOutcome(yield_after_s=WITHDRAWN_S))

    # --- what runs send --------------------------------------------------------------------------

    def _message(self, key: str, number: int, operation: str, body: bytes) -> None:
        with self._lock:
            run = self._submitted.get(key)
        if run is None:
            return  # it has ended
        if operation == "log":
            run.live.log(body)
        elif operation == "started":
            node, os_pid, advisories, enforced = msgspec.json.decode(body)
            self._placed(run, node)
            if (cpu := run.live.assignment.cpu) is not None:
                advisories += [told for told, _ in cpu.states(NO_GROUPS, "cluster")]
            run.live.placed(self._node_name(node), os_pid=os_pid, advisories=advisories, enforced=enforced)
        elif operation == "progress":
            run.live.progress(*msgspec.json.decode(body))
        elif operation in _WAITING:
            self._answer_on_thread(run, number, operation, body)
        else:
            self._answer(run, number, operation, body)
        run.received += 1
        self._end_if_complete(run)

    def _placed(self, run: _Run, node_id: str) -> None:
        with self._lock:
            run.is_placed = True
            if node_id != run.node:  # its node had left the cluster
                self._room.give(run.needs, run.node)
                self._room.take(run.needs, node_id)
                run.node = node_id
            was_withdrawn = self._withdrawn.pop(kind_of(run.shape), None)
        if was_withdrawn is not None:
            self._tell_problems()

    def _answer(self, run: _Run, number: int, method: str, body: bytes) -> None:
        """Make the call that a run requested, and send the reply."""
        try:
            args, options = msgspec.json.decode(body)
            answer = answer_request(run.live, (method, args, options))
            reply = pickle.dumps((True, answer, run.live.stop_reason))
        except Exception as problem:  # raised in the function that sent the request
            reply = _pickled_error(problem, run.live.stop_reason)
        with self._lock:
            if self._link is not None:
                self._link.send("parcels", [[run.key, number, reply]])

    def _answer_on_thread(self, run: _Run, number: int, method: str, body: bytes) -> None:
        """Answer a request that may take long. Ray lets others use the CPUs of a run that waits."""
        if not self._waits.acquire(blocking=False):
            problem = LimitExceeded("waits_max", WAITS_MAX, WAITS_MAX + 1)
            with self._lock:
                if self._link is not None:
                    self._link.send("parcels", [[run.key, number, _pickled_error(problem)]])
            return

        def answer() -> None:
            try:
                self._change_waits(run, 1)
                self._on_room()
                self._answer(run, number, method, body)
            finally:
                self._waits.release()
                self._change_waits(run, -1)

        threading.Thread(target=keeping_author(answer), name="rota-ray-wait", daemon=True).start()

    def _change_waits(self, run: _Run, change: int) -> None:
        """Count a request that waits. The first one frees the run's CPUs; they are taken again after the last."""
        with self._lock:
            before, run.waits = run.waits, run.waits + change
            if run.key not in self._submitted:
                return  # it has ended
            cpus = RayShape(tuple((name, amount) for name, amount in run.shape.resources if name == "CPU"))
            if not before:
                self._room.give(cpus, run.node)
            elif not run.waits:
                self._room.take(cpus, run.node)

    # --- how runs end ----------------------------------------------------------------------------

    def _ended(self, key: str, outcome: RunOutcome, node: str, sent: int, output: bytes) -> None:
        with self._lock:
            run = self._submitted.get(key)
        if run is None:
            return
        self._placed(run, node)
        usage = dict(outcome.usage)
        held = self._usage.of(run.live.entry.pid, run.shape, usage.pop("wall_ms", 0))
        outcome = msgspec.structs.replace(outcome, usage={**usage, **held}, node=self._node_name(node))
        run.result = sent, outcome, output
        self._end_if_complete(run)

    def _end_if_complete(self, run: _Run) -> None:
        """End a run that has returned, once everything has arrived that it sent before."""
        if run.result is not None and run.received >= run.result[0]:
            _, outcome, output = run.result
            if output:
                run.live.log(output)
            self._end(run, outcome)

    def _broke(self, key: str, exit_kind: Any, outcome: str | None, error: str) -> None:
        with self._lock:
            run = self._submitted.get(key)
            self._is_doubtful = self._is_doubtful or outcome == "node_died"  # perhaps the whole cluster is gone
        if run is not None:
            self._end(run, RunOutcome(exit_kind=exit_kind, outcome=outcome, result={"error": error}))

    def _end(self, run: _Run, outcome: RunOutcome) -> None:
        with self._lock:
            if self._submitted.pop(run.key, None) is None:
                return
            self._room.give(run.needs, run.node)
            if run.received and self._link is not None:
                self._link.send("parcels", [[run.key]])
        if run.is_withdrawn and outcome.exit_kind != "completed" and run.live.stop_reason is None:
            self._end_withdrawn(run)
        else:
            run.end(outcome)
        self._submit_held()

    # --- what people see -------------------------------------------------------------------------

    def _node_name(self, node_id: str) -> str:
        """Return the name of a node; with a part of its id if another node has the same name."""
        with self._lock:
            names = [(node.id, node.name) for node in self._room.nodes]
        own = next((name for each, name in names if each == node_id), node_id)
        return own if sum(name == own for _, name in names) <= 1 else f"{own}/{node_id[:8]}"

    def _problems(self) -> tuple[PlacementProblem, ...]:
        found = []
        for shape in sorted(self._shapes, key=kind_of):
            kind = kind_of(shape)
            if self._unreachable is not None:
                found.append(PlacementProblem(kind, "cluster_unreachable", self._unreachable))
            elif self._is_ready and (missing := lack(shape, self._room.nodes)) is not None:
                found.append(PlacementProblem(kind, missing[0], missing[1][:NOTE_CHARS_MAX]))
            elif kind in self._withdrawn:
                found.append(PlacementProblem(kind, "withdrawn", self._withdrawn[kind][:NOTE_CHARS_MAX]))
        return tuple(found)

    def _tell_problems(self) -> None:
        with self._lock:
            problems, before = self._problems(), self._told
            self._told = problems
        if problems != before:
            for problem in problems:
                if problem not in before:
                    _log.warning("runs of %s wait: %s", problem.kind, problem.text)
            self._on_problems()


class _RayStopHandle:
    """Stops a run on the cluster: by a message, by Ray's cancel, by force."""

    def __init__(self, runs: RayRuns, run: _Run) -> None:
        self._runs, self._run = runs, run

    def request_stop(self, reason: str) -> bool:
        """Send a message to the run's node; a run that is not placed yet has no process to read it."""
        return self._runs.stop(self._run, reason)

    def terminate(self) -> bool:
        """Cancel the task: KeyboardInterrupt in a function, SIGTERM to a program."""
        return self._runs.cancel(self._run, force=False)

    def kill(self) -> bool:
        """Kill the process of the task."""
        if self._runs.cancel(self._run, force=True):
            return True
        return self._runs.stop(self._run, "killed")


def _pickled_error(problem: Exception, stop_reason: str | None = None) -> bytes:
    try:
        return pickle.dumps((False, problem, stop_reason))
    except Exception:  # the reduce method of an exception may raise anything
        return pickle.dumps((False, RotaError(f"{type(problem).__name__}: {problem}"), stop_reason))


def _import_folders() -> list[str]:
    """Return the folders from which this program imports its own modules."""
    installed = (sys.prefix, sys.base_prefix)
    found = [str(Path(folder).absolute()) for folder in sys.path]
    return [folder for folder in found if Path(folder).is_dir() and not folder.startswith(installed)]


def _address_of_environment() -> str | None:
    return os.environ.get("RAY_ADDRESS") or None
