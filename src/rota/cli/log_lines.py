"""Log lines of long commands, which cannot control the terminal that they are printed on."""

from __future__ import annotations

import logging
from typing import Any

from rota.cli.terminal_text import harmless

__all__ = ["HarmlessFormatter"]


class HarmlessFormatter(logging.Formatter):
    """Formats log lines. The lines of a message after the first are indented, so they cannot pass for other entries."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return the line of a record."""
        record.message = harmless(record.message, lines=True).replace("\n", "\n    ")
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        """Return a traceback."""
        return harmless(super().formatException(ei), lines=True)
