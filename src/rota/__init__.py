"""rota: a scheduler for fleets of AI agents. It decides which agent runs next, on whose budget, and by when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.app import Rota
    from rota.graph import Graph
    from rota.kernel import enqueue_statement

__all__ = ["Graph", "Rota", "__version__", "enqueue_statement"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load what is exported on first use, so that `import rota` and the command line start quickly."""
    if name == "Rota":
        from rota.app import Rota  # noqa: PLC0415  # lazily, for a quick start

        return Rota
    if name == "Graph":
        from rota.graph import Graph  # noqa: PLC0415  # lazily, for a quick start

        return Graph
    if name == "enqueue_statement":
        from rota.kernel import enqueue_statement  # noqa: PLC0415  # lazily, for a quick start

        return enqueue_statement
    raise AttributeError(f"module 'rota' has no attribute {name!r}")
