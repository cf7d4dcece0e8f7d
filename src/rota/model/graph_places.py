"""The place of an entry in a graph run, as people read it."""

from __future__ import annotations

import msgspec

__all__ = ["TRIGGER", "GraphNode"]

TRIGGER = "graph"  # of the entries of graph runs


class GraphNode(msgspec.Struct, frozen=True):
    """The place of an entry in a graph run: one of its nodes, or its coordinator."""

    run_id: str
    graph: str | None  # None: the run was forgotten
    component: str  # the node; "": the entry coordinates the run
    epoch_id: int | None = None

    def sentence(self) -> str:
        """Return the place as a part of a sentence."""
        run = f"run {self.run_id}" + ("" if self.graph is None else f" of {self.graph}")
        if not self.component:
            return f"coordinator of {run}"
        epoch = "" if self.epoch_id is None else f", epoch {self.epoch_id}"
        return f"{self.component} in {run}{epoch}"
