"""How hard the generated tests look, what tests begin with and leave, and the mark of tests for some stores only.

In ./dev test they look at a few cases, the same ones each time: what fails there fails for whoever broke it. ./dev soak
looks at many, and at new ones each time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from tests.short_folders import short_folder

ROOT = Path(__file__).parents[1]

settings.register_profile(
    "test", max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", max_examples=2_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

os.environ.pop("PYTHONUNBUFFERED", None)  # with it a line is two writes, and the lines of two processes mix

# nohup ignores SIGHUP, a shell ignores SIGINT for what it starts in the background; every process of a test would
# inherit that, and no signal that a test sends would arrive
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder whose path is short, however long TMPDIR is: for sockets, whose paths have room for 107 bytes."""
    with short_folder() as folder:
        yield folder


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_on(*kinds, reason): a test that can run on these kinds of store only")
    config.addinivalue_line("markers", "long_on_postgres: a test that runs on PostgreSQL in ./dev soak only")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each of several workers begin with other tests: in a new clone, each compiles a part and finds the rest done.

    pytest compiles tests itself, which takes more than half of the time of a first collection.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or session.config.args != ["tests"]:
        return
    names = sorted(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in ROOT.glob("tests/**/test_*.py"))
    first = len(names) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for name in names[first:] + names[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection says what is wrong
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """Keep the half a million objects of all tests out of later garbage collections: each would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Forget the modules that a test imported from its own files or an example: others may have the same name."""
    before = len(sys.modules)
    done = yield
    if len(sys.modules) != before:
        for name in [name for name, module in sys.modules.items() if _is_of_a_test(name, module)]:
            del sys.modules[name]
    return done


EXAMPLES = str(ROOT / "examples")
KEPT = tuple({sys.prefix, sys.base_prefix, str(ROOT)})


def _is_of_a_test(name: str, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or name in {"__main__", "__mp_main__"}:
        return False
    return file.startswith(EXAMPLES) or not file.startswith(KEPT)


def pytest_unconfigure() -> None:
    if (stores := sys.modules.get("tests.stores")) is not None:
        stores.drop_schemas()
