"""What telemetry costs the queue.

`otel-on` drains a file while an exporter follows its journal and sends traces and logs to a collector; the other side
drains the same file alone. Collector, exporter and workers are processes of their own, as in production. A round
counts only if every entry ran once and the collector got the three spans of each: enqueue, wait and process. What it
gets after the drain is not timed: the journal is the exporter's buffer, and nothing waits for it.

`otel-off` enqueues and runs functions in a program that has loaded OpenTelemetry and traces nothing, beside the same
program without it. The goal is no difference: the median of nine interleaved pairs.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import opentelemetry.trace  # the extra is installed; whether it is loaded is a side of `otel-off`

from bench.harness import Arena, Case, Measured
from bench.queue_drain import BATCH, ENTRIES, ROUNDS, SEED, WAIT_S, Drain, Outcome
from bench.queue_files import Folder, draw, new_file, open_kernel
from rota import Rota
from rota.kernel import ReadyEntry
from rota.telemetry import ExporterProcess, mark_start

__all__ = ["cases"]

WORKERS = 4
SPANS_OF_ENTRY = 3
SENT_S = 300.0  # for what is left in the journal after a drain
JOBS = 4_000  # fewer are noisier: with a thousand, a side differs from itself by a quarter
PAIRS = 9
_LOADED = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "opentelemetry"}


def cases() -> Iterator[Case]:
    assert opentelemetry.trace is not None
    baseline = "the same drain without telemetry"
    yield Case("otel-on", ENTRIES, "ops/s", baseline, _on_arena, goal=0.8, rounds=ROUNDS)
    baseline = "OpenTelemetry not loaded"
    yield Case("otel-off", JOBS, "ops/s", baseline, _off_arena, goal=0.95, rounds=PAIRS)


# --- on ------------------------------------------------------------------------------------------


def _on_arena() -> Arena:
    folder = Folder()
    full = new_file(folder.file("full.db"), [entry.spec for entry in draw(random.Random(SEED), ENTRIES)])

    def traced() -> Measured:
        path = folder.copy(full, "traced.db")
        kernel = open_kernel(path)
        mark_start(kernel.journal)
        kernel.journal.append(None, "bench.ready")
        kernel.store.close()
        with _collector() as receiver, _environment(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.address):
            exporter = ExporterProcess(path)
            receiver.wait_until_ready()
            drained = _drain(path)
            exporter.close(SENT_S)
            spans = receiver.spans()
        return Measured(drained.value, (drained.answer, spans))

    def alone() -> Measured:
        drained = _drain(folder.copy(full, "alone.db"))
        return Measured(drained.value, drained.answer)

    def verify(ours: tuple[Outcome, int], theirs: Outcome) -> bool:
        return ours == (Outcome(ENTRIES, ENTRIES, 0), SPANS_OF_ENTRY * ENTRIES) and theirs == ours[0]

    return Arena(rota=traced, base=alone, verify=verify, close=folder.close)


def _drain(path: str) -> Measured:
    kernel = open_kernel(path)

    def claim(worker_id: str) -> list[ReadyEntry]:
        return kernel.queue.claim(worker_id=worker_id, max_n=BATCH, wait_s=WAIT_S)

    try:
        return Drain(kernel, claim).run(WORKERS)
    finally:
        kernel.store.close()


class _Receiver:
    """The process of the collector."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.otlp_receiver"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait_until_ready(self) -> None:
        """Wait for the first request: the exporter has started."""
        assert self._line() == "ready"

    def spans(self) -> int:
        """End it, and return how many spans it got."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return int(self._line())


@contextmanager
def _collector() -> Iterator[_Receiver]:
    receiver = _Receiver()
    try:
        yield receiver
    finally:
        receiver.process.kill()
        receiver.process.wait()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# --- off -----------------------------------------------------------------------------------------


def _off_arena() -> Arena:
    folder = Folder()

    def run(name: str) -> Measured:
        with Rota(folder.file(f"{name}-{time.monotonic_ns()}.db")) as rota:
            ran: list[int] = []

            @rota.agent
            def note(number: int) -> None:
                ran.append(number)

            started = time.perf_counter()
            for number in range(JOBS):
                note.enqueue(number)
            rota.run(slots=WORKERS, until_idle=True)
            return Measured(JOBS / (time.perf_counter() - started), sorted(ran) == list(range(JOBS)))

    def loaded() -> Measured:
        sys.modules.update(_LOADED)
        return run("loaded")

    def absent() -> Measured:
        for name in _LOADED:
            sys.modules.pop(name, None)
        return run("absent")

    return Arena(rota=loaded, base=absent, verify=lambda ours, theirs: ours and theirs, close=folder.close)
