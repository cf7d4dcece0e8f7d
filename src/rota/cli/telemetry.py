"""`--otel` of `rota run` and `rota serve`: an exporter beside this process, and spans for its runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["exporting", "start_tracing"]


def start_tracing(journal: Any, store: str, *, asked: bool) -> None:
    """Let the runs of this process know their spans, as ROTA_OTEL=on does; a first exporter begins here."""
    if asked:
        os.environ["ROTA_OTEL"] = "on"
        if _has_exporter(store):
            from rota.telemetry import mark_start

            mark_start(journal)


@contextmanager
def exporting(store: str, *, asked: bool, is_quiet: bool = False) -> Iterator[None]:
    """Run an exporter of a store during the block, if asked for; a daemon has its own."""
    if not asked or not _has_exporter(store):
        yield
        return
    from rota.telemetry import ExporterProcess

    with ExporterProcess(store, is_quiet=is_quiet):
        yield


def _has_exporter(store: str) -> bool:
    """Whether this process starts an exporter; raises `NotEnabled` if the extra is missing."""
    from rota.cli.connection import is_store
    from rota.telemetry import check_installed

    if not is_store(store) or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    check_installed()
    return True
