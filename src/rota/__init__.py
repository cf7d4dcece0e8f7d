"""rota: a scheduler for fleets of AI agents. It decides which agent runs next, on whose budget, and by when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.app import Rota
    from rota.graph import Graph

__all__ = ["Graph", "Rota", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load `Rota` and `Graph` on first use, so that `import rota` and the command line start quickly."""
    if name == "Rota":
        from rota.app import Rota  # noqa: PLC0415  # lazily, for a quick start

        return Rota
    if name == "Graph":
        from rota.graph import Graph  # noqa: PLC0415  # lazily, for a quick start

        return Graph
    raise AttributeError(f"module 'rota' has no attribute {name!r}")
