"""Rounds: the same test with one seed after another, a few in ./dev test and as many as the time allows in ./dev soak.

    ./dev soak tests/adversity                          10 minutes, shared by the tests that have rounds
    ROTA_SOAK_MINUTES=60 ./dev soak tests/adversity     an hour, continuing with the seed after the last one
    ROTA_SOAK_SEED=417 ./dev soak tests/adversity/...   this seed only, to see a failure again

What a soak has done is kept in `.cache/soak/`, one file for each test: the next seed, how many rounds passed, and the
seeds that failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

Rounds = Callable[[int], Iterator[int]]

SOAK_MINUTES = float(os.environ.get("ROTA_SOAK_MINUTES", "10"))
_KEPT = Path(".cache/soak")
_sharing = 1  # tests that share the minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _sharing  # noqa: PLW0603  # pytest has no better place for what the collection found
    _sharing = max(1, sum("rounds" in getattr(item, "fixturenames", ()) for item in items))


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Rounds:
    """Return a function that yields the seeds of a test; its argument is how many ./dev test runs."""

    def seeds(in_test: int) -> Iterator[int]:
        if (only := os.environ.get("ROTA_SOAK_SEED")) is not None:
            yield int(only)
        elif "ROTA_SOAK" in os.environ:
            yield from _soak(request.node.nodeid)
        else:
            yield from range(in_test)

    return seeds


class _Done(msgspec.Struct):
    """What the soaks of one test have done so far."""

    next_seed: int = 0
    passed: int = 0
    failed: list[int] = []


def _soak(name: str) -> Iterator[int]:
    file = _KEPT / (name.replace("/", ".").replace("::", ".") + ".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    done = msgspec.json.decode(file.read_bytes(), type=_Done) if file.exists() else _Done()
    end_at = time.monotonic() + SOAK_MINUTES * 60 / _sharing
    while True:
        seed = done.next_seed
        done.next_seed += 1
        done.failed.append(seed)
        file.write_bytes(msgspec.json.encode(done))  # before the round: it may end the process
        yield seed  # if the round fails, the generator is not resumed, and the seed stays among the failed
        done.failed.remove(seed)
        done.passed += 1
        file.write_bytes(msgspec.json.encode(done))
        if time.monotonic() >= end_at:
            return
