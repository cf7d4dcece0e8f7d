"""The driver process: the only one of a supervisor that loads Ray. It submits tasks and passes messages on.

It is a thin translator. It reads commands from the supervisor on one socket, and writes what happens there:

    command                                  event
    run      submit a task                   ready    connected
    function keep a pickled function         failed   cannot connect: why, in one sentence
    cancel   Ray's cancel, or by force       view     the nodes that are up, every `VIEW_S`
    parcels  for the mailbox                 message  of a run, from the mailbox
    demand   for the autoscaler              ended    how a task ended

A run is submitted as a task, or handed on to a task that waits for one (submitted_tasks.py).

Commands and events are lists in msgpack, several to a frame. A process that loses its cluster is ended by Ray, or
reports nothing any more: both look the same to the supervisor, which starts another one.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any
from uuid import uuid4

import msgspec

from rota.clock import SystemClock
from rota.fleet.on_ray.mailbox import ANSWER, MAILBOX_NAMESPACE, Mailbox
from rota.fleet.on_ray.submitted_tasks import SubmittedTasks, Task

__all__ = ["main"]

VIEW_S = 1.0  # how often the nodes are reported
OVERDUE_S = 0.1  # how often it looks for tasks that have waited for long enough
CONNECT_S = 5.0  # for the first connection to the head
ERROR_CHARS_MAX = 2_000
INLINE_BYTES_MAX = 16 * 1024  # a function of this size is sent with each run; a larger one is stored once
LOOPBACK = ("127.", "localhost")
_encode = msgspec.msgpack.Encoder().encode
_clock = SystemClock()


def main(fd: int) -> None:
    """Serve the supervisor at the other end of this socket until it closes it."""
    connection = Connection(fd)
    settings = msgspec.msgpack.decode(connection.recv_bytes())
    driver = _Driver(connection, settings["linger_s"])
    threading.Thread(target=driver.send_events, daemon=True).start()
    try:
        driver.connect(settings.get("address"))
    except BaseException as problem:
        connection.send_bytes(_encode([["failed", _told(problem, settings.get("address"))]]))
        os._exit(1)
    threading.Thread(target=driver.report_nodes, daemon=True).start()
    if settings["linger_s"]:
        threading.Thread(target=driver.end_overdue, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            driver.handle(msgspec.msgpack.decode(connection.recv_bytes()))
    driver.disconnect()
    os._exit(0)  # without the exit handlers of Ray, which wait for the cluster


class _Driver:
    """The connection to a cluster, and the tasks on it."""

    def __init__(self, connection: Connection, linger_s: float) -> None:
        self._connection = connection
        self._events: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._tasks = SubmittedTasks(linger_s)
        self._handed: list[tuple[int, bytes]] = []  # runs to be handed on after the current commands
        self._functions: dict[int, Any] = {}  # pickled functions, or references to large ones
        self._places: dict[tuple[str, ...], bytes] = {}
        self._forms: dict[bytes, Any] = {}  # the remote function with options, by these options
        self._handlers: dict[str, Callable[..., None]] = {
            "run": self._run,
            "function": self._function,
            "cancel": self._cancel,
            "parcels": self._deliver,
            "demand": self._demand,
        }

    # --- the cluster -----------------------------------------------------------------------------

    def connect(self, address: str | None) -> None:
        """Connect to the head at an address, or to a cluster on this machine."""
        _probe(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray: Any = import_module("ray")  # only here: it takes a second and 80 MB

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            options["include_dashboard"] = False
        elif address.startswith(LOOPBACK):
            options["_node_ip_address"] = address.rpartition(":")[0]
        ray.init(address=address, **options)
        self._ray = ray
        self._start_mailbox()
        self._events.put(["ready", ray.__version__])

    def _start_mailbox(self) -> None:
        self._on_node: Any = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        run_task = import_module("rota.fleet.on_ray.task").run_task  # it loads Ray
        here = self._on_node(self._ray.get_runtime_context().get_node_id(), soft=False)
        self._mailbox_name = f"rota-{uuid4().hex}"
        actor: Any = self._ray.remote(Mailbox).options(
            num_cpus=0,
            max_concurrency=100_000,
            scheduling_strategy=here,
            name=self._mailbox_name,
            namespace=MAILBOX_NAMESPACE,
        )
        self._mailbox: Any = actor.remote()
        self._remote = self._ray.remote(run_task)
        self._take()

    def report_nodes(self) -> None:
        """Report the nodes that are up, also if nothing has changed: the supervisor sees that this process works."""
        pause = threading.Event()
        while True:
            available = self._ray._private.state.available_resources_per_node()
            waiting = self._tasks.waiting_resources()
            nodes = []
            for each in self._ray.nodes():
                free = available.get(each["NodeID"])
                if each["Alive"] and free is not None:
                    more = waiting.get(each["NodeID"], {})
                    free = {name: free.get(name, 0.0) + more.get(name, 0.0) for name in each["Resources"]}
                    about = (each[name] for name in ("NodeID", "NodeName", "NodeManagerAddress", "Resources"))
                    nodes.append([*about, free])
            self._events.put(["view", nodes])
            pause.wait(VIEW_S)

    def disconnect(self) -> None:
        """End what runs, and a cluster that was started here."""
        guard = threading.Timer(CONNECT_S, os._exit, (0,))
        guard.daemon = True
        guard.start()
        self._ray.shutdown()

    # --- events ----------------------------------------------------------------------------------

    def send_events(self) -> None:
        """Write events, as many as there are in one frame."""
        while True:
            events = [self._events.get()]
            with suppress(queue.Empty):
                while True:
                    events.append(self._events.get_nowait())
            try:
                self._connection.send_bytes(_encode(events))
            except OSError:
                os._exit(0)  # the supervisor is gone

    def _take(self) -> None:
        self._mailbox.take.remote().future().add_done_callback(self._taken)

    def _taken(self, future: Future[Any]) -> None:
        problem = future.exception()
        if problem is not None:
            self._events.put(["lost", f"the mailbox on the cluster is gone: {_line(problem)}"])
            return
        for run, number, operation, body in future.result():
            if operation == ANSWER:
                self._answered(run, msgspec.msgpack.decode(body))
            else:
                self._events.put(["message", run, number, operation, body])
        self._take()

    # --- tasks -----------------------------------------------------------------------------------

    def _answered(self, run: str, answer: list[Any]) -> None:
        is_known, over = self._tasks.answered(run, answer[1], _clock.monotonic())
        if over is not None:
            self._end_tasks([over])
        if is_known:
            self._events.put(["ended", run, *answer])

    def _ended(self, task: Task, future: Future[Any]) -> None:
        run = self._tasks.ended(task)
        problem = future.exception()
        if run is None:
            return  # it was told to end
        if problem is None:
            self._events.put(["ended", run, *msgspec.msgpack.decode(future.result())])
        else:
            self._events.put(["broke", run, *_classified(problem)])

    def end_overdue(self) -> None:
        """End the tasks that have waited for long enough, whenever there are some."""
        pause = threading.Event()
        while True:
            pause.wait(OVERDUE_S)
            self._end_tasks(self._tasks.overdue(_clock.monotonic()))

    def _end_tasks(self, tasks: Sequence[Task]) -> None:
        if tasks:
            self._mailbox.hand_on.remote([(task.number, b"") for task in tasks])

    # --- commands --------------------------------------------------------------------------------

    def handle(self, commands: list[list[Any]]) -> None:
        """Do what the supervisor asks."""
        for name, *arguments in commands:
            self._handlers[name](*arguments)
        if self._handed:
            self._mailbox.hand_on.remote(self._handed)
            self._handed = []

    def _function(self, number: int, pickled: bytes) -> None:
        self._functions[number] = pickled if len(pickled) <= INLINE_BYTES_MAX else self._ray.put(pickled)

    def _run(self, run: str, spec: bytes, function: int | None, folders: list[str], options: dict[str, Any]) -> None:
        pickled = b"" if function is None else self._functions[function]
        form = _encode((options, folders, function))
        task, over = self._tasks.place(run, form, options["node"][0], _needs(options))
        self._end_tasks(over)
        if task.reference is not None:
            self._handed.append((task.number, spec))
            return
        try:
            place = self._place_bytes(tuple(folders))
            number = task.number if self._tasks.are_kept else 0
            task.reference = self._form(options).remote(number, spec, pickled, place)
        except Exception as problem:  # an invalid runtime_env, for example
            self._tasks.ended(task)
            self._events.put(["broke", run, "failed", "spawn_failed", _line(problem)])
            return
        task.reference.future().add_done_callback(partial(self._ended, task))

    def _place_bytes(self, folders: tuple[str, ...]) -> bytes:
        """Return what every run of this driver is told. As bytes, arguments cost Ray nothing but a copy."""
        if folders not in self._places:
            self._places[folders] = _encode((self._mailbox_name, folders))
        return self._places[folders]

    def _form(self, options: dict[str, Any]) -> Any:
        """Return the remote function with these options. Retries are the kernel's."""
        key = _encode(options)
        if key not in self._forms:
            given = dict(options)
            node, may_be_elsewhere = given.pop("node")
            given["scheduling_strategy"] = self._on_node(node, soft=may_be_elsewhere)
            self._forms[key] = self._remote.options(max_retries=0, retry_exceptions=False, **given)
        return self._forms[key]

    def _cancel(self, run: str, force: bool) -> None:
        task = self._tasks.cancel(run)
        if task is not None:
            with suppress(Exception):  # it has ended
                self._ray.cancel(task.reference, force=force)

    def _deliver(self, parcels: list[list[Any]]) -> None:
        self._mailbox.deliver.remote(parcels)

    def _demand(self, bundles: list[dict[str, float]]) -> None:
        import_module("ray.autoscaler.sdk").request_resources(bundles=bundles)


def _needs(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources that Ray's options of a task name."""
    named = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], "memory": options.get("memory", 0)}
    return {name: amount for name, amount in {**named, **options.get("resources", {})}.items() if amount}


def _probe(address: str | None) -> None:
    """Raise OSError if nothing listens at an address: Ray itself tries for a minute."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_S).close()


def _classified(problem: BaseException) -> tuple[str, str | None, str]:  # noqa: PLR0911  # one for each case
    """Return exit kind, outcome and error of a task that did not return."""
    exceptions: Any = import_module("ray.exceptions")
    line = _line(problem)
    if isinstance(problem, exceptions.TaskCancelledError):
        return "cancelled", None, "cancelled"
    if isinstance(problem, exceptions.OutOfMemoryError):
        return "crashed", "over_memory", line
    if isinstance(problem, exceptions.RuntimeEnvSetupError):
        return "failed", "spawn_failed", f"its runtime_env cannot be set up: {line}"
    if isinstance(problem, exceptions.NodeDiedError | exceptions.TaskUnschedulableError):
        return "crashed", "node_died", f"the node that it ran on is gone: {line}"
    if isinstance(problem, exceptions.WorkerCrashedError):
        return "crashed", "worker_died", f"the process that it ran in has died: {line}"
    if isinstance(problem, ImportError):
        return "failed", "spawn_failed", f"rota cannot be imported on the node: {line}"
    return "crashed", "runner_failed", line


def _told(problem: BaseException, address: str | None) -> str:
    """Return why there is no connection, in one sentence."""
    where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
    if isinstance(problem, ModuleNotFoundError) and problem.name == "ray":
        return "Ray is not installed here: pip install 'rota[ray]'"
    text = _line(problem)
    if "ersion mismatch" in text:
        return f"{where} has another version: {text}"
    return f"{where} cannot be reached: {text}"


def _line(problem: BaseException) -> str:
    """Return an error on one line."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text[:ERROR_CHARS_MAX]


if __name__ == "__main__":
    main(int(sys.argv[1]))
