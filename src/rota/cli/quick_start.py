"""Imported before all else by the command line: while modules are loaded, Python need not search for cycles of objects.

At its usual setting it does so after 700 new objects, a hundred times while a short command starts, and again when the
process ends; it finds nothing. Commands that may run for long go back to the usual setting (`usual_search`), at once or
when they have loaded what they need (`end_of_start`). A program that imports the command line, as tests do, is left as
it is.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

__all__ = ["end_of_start", "usual_search"]

OBJECTS = 500_000  # new ones between two searches: more than a short command makes
_USUAL = gc.get_threshold()


def usual_search() -> None:
    """Search for cycles as often as usual."""
    gc.set_threshold(*_USUAL)


def end_of_start() -> None:
    """Search as usual from now on, and never again in what was loaded so far: it stays until the end."""
    gc.freeze()
    usual_search()


if os.path.basename(sys.argv[0]) in ("rota", "__main__.py"):  # noqa: PTH119  # pathlib is not loaded yet
    gc.set_threshold(OBJECTS)
    atexit.register(gc.freeze)
