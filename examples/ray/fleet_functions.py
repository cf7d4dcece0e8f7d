"""The function of the agent `embed`. The nodes of the cluster import it from their working directory."""

from __future__ import annotations

from typing import Any


def embed(ctx: Any, path: str) -> dict[str, Any]:
    done = (ctx.saved or {}).get("done", 0)
    for number in range(done, 10):
        ctx.raise_if_stopped()
        ctx.progress(number / 10, path)
        ctx.checkpoint(done=number + 1)
    return {"path": path, "node_attempt": ctx.attempt}
