"""The main module of the program, run again in another process, so that its functions and classes are found there.

The module runs under another name, so that code under `if __name__ == "__main__"` does not run. A main module without
this guard would start the whole program again; `this_process.is_loading` lets the program detect that.
"""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path

__all__ = ["MAIN_NAME", "load_main", "locate_main", "this_process"]

MAIN_NAME = "__mp_main__"  # the name multiprocessing uses


class _ThisProcess:
    """What this process knows of the program it works for."""

    is_loading = False  # modules of the program are being imported, not run
    main: dict[str, str | None] | None = None  # where the main module can be loaded from; None: nothing is to load


this_process = _ThisProcess()


def locate_main() -> dict[str, str | None] | None:
    """Where the main module of this program was loaded from; None in an interactive session."""
    module = sys.modules["__main__"]
    sys.modules.setdefault(MAIN_NAME, module)  # a result may be an instance of a class defined there
    spec, path = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return {"module": spec.name, "path": None}
    return {"module": None, "path": str(Path(path).absolute())} if path is not None else None


def load_main() -> bool:
    """Run the main module, unless that has been done. Return whether it was run now."""
    main, this_process.main = this_process.main, None
    if main is None:
        return False
    loading_before, this_process.is_loading = this_process.is_loading, True
    try:
        if main["module"] is not None:
            names = runpy.run_module(main["module"], run_name=MAIN_NAME, alter_sys=True)
        else:
            names = runpy.run_path(str(main["path"]), run_name=MAIN_NAME)
    finally:
        this_process.is_loading = loading_before
    loaded = types.ModuleType(MAIN_NAME)
    loaded.__dict__.update(names)
    sys.modules["__main__"] = sys.modules[MAIN_NAME] = loaded
    return True
