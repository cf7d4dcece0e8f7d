"""Functions that the tests run on the nodes of a cluster."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from rota.fleet.runners.context import RunContext


def busy(seconds: float) -> None:
    time.sleep(seconds)


def until_stopped(ctx: RunContext, file: str) -> dict[str, Any]:
    Path(file).write_text(ctx.key)
    ctx.wait_for_stop()
    ctx.checkpoint(stopped=ctx.stop_reason)
    ctx.raise_if_stopped()
    return {}


def deaf(file: str) -> None:
    """Takes no message; only force ends it, because it never runs Python code again."""
    Path(file).write_text("here")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    time.sleep(3_600)


def until_interrupted(file: str = "") -> str:
    """With a file it takes no message, and Ray's cancel ends it; without one it ends soon."""
    if file:
        Path(file).write_text("here")
    time.sleep(3_600 if file else 0.3)
    return "not interrupted"


def die_once(marker: str) -> str:
    """Kills its own process at the first attempt."""
    if not Path(marker).exists():
        Path(marker).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def told_demand(wanted: int) -> list[dict[str, float]]:
    """What the autoscaler was told: at least so many of its parts."""
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL as CHANNEL  # noqa: PLC0415
    from ray.experimental.internal_kv import _internal_kv_get  # noqa: PLC0415

    while True:
        told = json.loads(_internal_kv_get(CHANNEL) or "[]")
        if len(told) >= wanted:
            return list(told)
        time.sleep(0.1)
