"""Follows the journal and sends what happened to an OpenTelemetry collector.

The exporter is a reader like `rota tail`: it reads pages of the journal from a cursor, makes spans and logs of them,
sends them, and only then moves on. So the journal is its buffer: a collector that is away costs nothing but a delay, an
exporter that was stopped goes on where it was, and the programs that schedule and run never wait for either. The cursor
is a note of the store. A page that was sent just before the exporter was killed is sent again; its ids are the same.
This module needs the extra `otel`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Literal, TypeAlias

import msgspec

from rota.errors import RotaError, StoreUnavailable
from rota.fault_log import FaultLog
from rota.kernel import Kernel
from rota.model.trace_context import sampling_ratio
from rota.model.work import ReadyEntry
from rota.observe import AgentName, FleetState, StartingState
from rota.observe.metrics import Metrics
from rota.telemetry.event_logs import event_logs, with_spans
from rota.telemetry.exporter_process import NOTE, CheckLock
from rota.telemetry.gen_ai_metrics import GenAiMetrics
from rota.telemetry.metric_points import metric_points
from rota.telemetry.otlp_senders import OtlpSenders
from rota.telemetry.span_fold import SpanFold
from rota.telemetry.span_records import nanoseconds
from rota.telemetry.trace_source import StoreSource

__all__ = ["ExportReport", "Exporter"]

PAGE_EVENTS = 1_000
AGENTS_MAX = 20_000  # agents whose names are read at the start
AGENTS_PAGE = 1_000
LOOKUPS_MAX = 100  # entries read for the sentences of a page
SAVE_EVERY_S = 5.0  # how often the cursor is written at most
RETRY_S = 5.0  # between two attempts to send a page
GIVE_UP_S = 600.0  # after which a page that the collector does not take is left out
Begin: TypeAlias = Literal["saved", "now", "start"]
_log = logging.getLogger("rota.telemetry")


class ExportReport(msgspec.Struct):
    """What an exporter has done."""

    events: int = 0
    spans: int = 0
    logs: int = 0
    left_out: int = 0  # events that the collector did not take


class Exporter:
    """Sends spans, logs and metrics of one store."""

    def __init__(
        self,
        kernel: Kernel,
        store: str,
        environ: Mapping[str, str],
        *,
        begin: Begin = "saved",
        report: ExportReport | None = None,
    ) -> None:
        self._kernel = kernel
        self._clock = kernel.clock
        self._senders = OtlpSenders(store, environ)
        self._delay_s = _milliseconds(environ, "OTEL_BSP_SCHEDULE_DELAY", 5_000)
        self._interval_s = _milliseconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000)
        self.report = ExportReport() if report is None else report  # with one, its numbers are added to
        self._faults = FaultLog("rota.telemetry", expected=(RotaError, ConnectionError))
        self._lookups = LOOKUPS_MAX
        self._cursor, self._saved = self._start(begin), -1
        self._save()  # the next exporter goes on here, also if this one ends before it sends
        self._fold = SpanFold(StoreSource(kernel), ratio=sampling_ratio(environ))
        self._fold.begin_with(each for each in StoreSource(kernel).live() if (each.token or 0) <= self._cursor)
        self._state = self._fleet_state()
        self._gen_ai = GenAiMetrics()
        self._metrics = Metrics(kernel) if self._senders.sends_metrics else None
        self._since_ns = nanoseconds(self._clock.now())
        self._metrics_at = self._clock.monotonic()

    def _start(self, begin: Begin) -> int:
        """Return where to begin: after what was sent before, else from now on; or where the caller says."""
        if begin == "start":
            return 0
        note = None if begin == "now" else self._kernel.journal.recall(NOTE)
        cursor = self._kernel.journal.cursor()
        return min(int(note.get("cursor", cursor)), cursor) if note is not None else cursor

    def _fleet_state(self) -> FleetState:
        names: dict[int, AgentName] = {}
        for offset in range(0, AGENTS_MAX, AGENTS_PAGE):
            agents, total = self._kernel.agents.list(limit=AGENTS_PAGE, offset=offset)
            names |= {agent.pid: AgentName(agent.name, agent.project_id) for agent in agents}
            if offset + AGENTS_PAGE >= total:
                break
        start = StartingState(through_id=self._cursor, at=self._clock.now(), agents=names)
        return FleetState(start, lookup=self._look_up)

    def _look_up(self, sched_id: int) -> ReadyEntry | None:
        """Return an entry whose run failed, for its error; only so many in a page."""
        self._lookups -= 1
        with suppress(RotaError):  # it was pruned
            return self._kernel.queue.get(sched_id) if self._lookups >= 0 else None
        return None

    def run(self, stop: threading.Event, check_lock: CheckLock = lambda: True) -> ExportReport:
        """Export until told to stop; what is in the journal then is sent, if the collector takes it.

        It ends with `StoreUnavailable` if the store is away, or the lock is lost: another exporter may be at work.
        """
        with closing(self._senders):
            while not stop.is_set():
                check_lock()
                if not self.step(stop):
                    stop.wait(self._delay_s)
            while self.step(stop):
                pass
            if self.report.events > self.report.left_out and self._kernel.journal.cursor() <= self._cursor:
                self.send_metrics()  # the collector takes what it is sent: the last values too
            self._save()
        return self.report

    def catch_up(self) -> ExportReport:
        """Export what is in the journal now, once, and end."""
        stop = threading.Event()
        with closing(self._senders):
            while self.step(stop):
                pass
            self.send_metrics()
            self._save()
        return self.report

    def step(self, stop: threading.Event) -> bool:
        """Send one page of events and the metrics that are due; returns whether there was a page."""
        page = self._kernel.journal.tail(self._cursor, PAGE_EVENTS)
        if page:
            self._lookups = LOOKUPS_MAX
            logs = event_logs(page, self._state) if self._senders.sends_logs else []
            spans = list(self._fold.fold(page)) if self._senders.sends_spans else []
            self._gen_ai.add(spans)
            logs = with_spans(logs, self._fold.span_of)
            if self._send(lambda: self._senders.send_spans(spans) and self._senders.send_logs(logs), stop):
                self.report.spans += len(spans)
                self.report.logs += len(logs)
            elif stop.is_set():
                return False  # the page stays for the next exporter
            else:
                self.report.left_out += len(page)
                _log.warning("%d events are left out: the collector did not take them", len(page))
            self.report.events += len(page)
            self._cursor = page[-1].event_id
        now = self._clock.monotonic()
        if now - self._metrics_at >= self._interval_s:
            self.send_metrics()
        if now - self._saved_at >= SAVE_EVERY_S or not page:
            self._save()
        return bool(page)

    def _send(self, send: Callable[[], bool], stop: threading.Event) -> bool:
        """Try until the collector has taken it, the time is over, or the exporter is stopped."""
        give_up_at = self._clock.monotonic() + GIVE_UP_S
        while not send():
            if stop.is_set() or self._clock.monotonic() >= give_up_at:
                return False
            away = ConnectionError("the collector cannot be reached")
            self._faults.failed("the export waits", away, then=f"trying every {RETRY_S:g} s", of="send")
            stop.wait(RETRY_S)
        self._faults.worked("send")
        return True

    def send_metrics(self) -> None:
        """Send the metrics of this moment; a failure is not repeated, the next values say more."""
        self._metrics_at = self._clock.monotonic()
        if self._metrics is not None:
            now_ns = nanoseconds(self._clock.now())
            points = metric_points(self._metrics.collect(), self._since_ns, now_ns)
            self._senders.send_metrics(points + self._gen_ai.points(self._since_ns, now_ns))

    def _save(self) -> None:
        """Write down how far it has come."""
        if self._cursor == self._saved:
            return
        self._saved_at = self._clock.monotonic()
        try:
            self._kernel.journal.remember(NOTE, {"cursor": self._cursor})
        except StoreUnavailable as problem:  # a full disk, for example; it is written later, or pages are sent again
            self._faults.failed("how far the export has come is not written down", problem)
        else:
            self._faults.worked()
            self._saved = self._cursor


def _milliseconds(environ: Mapping[str, str], name: str, default: int) -> float:
    try:
        return max(0.0, float(environ.get(name, default))) / 1000
    except ValueError:
        _log.warning("%s=%s is no number of milliseconds; %s is used", name, environ[name], default)
        return default / 1000
