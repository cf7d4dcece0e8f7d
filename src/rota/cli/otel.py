"""`rota otel`: send the journal of a store to an OpenTelemetry collector."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    import threading

    from rota.telemetry import ExportReport

__all__ = ["otel"]

RETRY_S = 1.0  # between two attempts to reach a store that is away


def otel(
    *,
    once: Annotated[bool, typer.Option("--once", help="Send what is in the journal now, and end.")] = False,
    from_now: Annotated[
        bool, typer.Option("--from-now", help="Leave out what happened since the last exporter.")
    ] = False,
    from_start: Annotated[bool, typer.Option("--from-start", help="Send the whole journal again.")] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", help="End when standard input ends.")] = False,
    store: Annotated[
        str, typer.Option("--store", "-s", envvar="ROTA_STORE", help="The file, or postgresql://….")
    ] = STORE,
    as_json: AsJson = False,
) -> None:
    """Send traces, metrics and logs to an OpenTelemetry collector, until stopped.

    Ctrl-C sends what is left; a second one ends it at once.

    Where to is read from the standard variables: OTEL_EXPORTER_OTLP_ENDPOINT and its relatives. It needs the extra
    `otel`. `rota run --otel` and `rota serve --otel` start it for you.
    """
    import logging
    import signal
    import threading

    from rota.cli.log_lines import HarmlessFormatter
    from rota.errors import InvalidInput

    if from_now and from_start:
        raise InvalidInput("--from-now and --from-start exclude each other", field="from_now", hint="Give one of them.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    stop = threading.Event()

    def end(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # a second one does not wait for a collector that is away

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    if until_eof:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that started it, which will say when
        threading.Thread(target=_wait_for_eof, args=(stop,), daemon=True).start()
    report = _export(store, stop, once=once, begin="start" if from_start else "now" if from_now else "saved")
    if report is not None and not until_eof:
        _print(report, as_json=as_json)


def _export(
    store: str, stop: threading.Event, *, once: bool, begin: Literal["saved", "now", "start"]
) -> ExportReport | None:
    """Export until told to stop, also after the store was away; return None if another process has the lock."""
    import logging
    import os

    from rota.cli.connection import open_file
    from rota.telemetry import check_installed, hold_exporter_lock, lower_priority

    check_installed()
    from rota.errors import InvalidInput, StoreUnavailable
    from rota.store import without_password
    from rota.telemetry import Exporter, ExportReport  # only now: they need what is installed

    lower_priority()
    report, was_there, is_said = ExportReport(), False, False
    while True:
        try:
            with open_file(store) as kernel:
                was_there = True
                with hold_exporter_lock(store, stop, waits=not once) as check_lock:
                    is_said = False
                    if check_lock is not None:
                        exporter = Exporter(kernel, store, os.environ, begin=begin, report=report)
                        return exporter.catch_up() if once else exporter.run(stop, check_lock)
                    if not once:
                        return None
                    hint = "It sends what is in the journal: nothing is to be done."
                    raise InvalidInput(f"another process exports {without_password(store)}", field="store", hint=hint)
        except StoreUnavailable as problem:
            if once or not was_there or stop.is_set():
                raise
            if not is_said:
                logging.getLogger("rota.telemetry").warning("waiting for the store: %s", problem)
            is_said = True
        begin = "saved"
        stop.wait(RETRY_S)


def _wait_for_eof(stop: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    stop.set()


def _print(report: ExportReport, *, as_json: bool) -> None:
    from rota.cli.output import print_json

    if as_json:
        print_json(report)
        return
    left_out = f"; {report.left_out:,} events were left out" if report.left_out else ""
    say(f"sent {report.spans:,} spans and {report.logs:,} log records of {report.events:,} events{left_out}", err=True)
