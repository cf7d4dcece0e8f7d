"""A store that tests damage: raw writes to any column, as another program or a faulty disk would make them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rota.fleet import Supervisor
from rota.kernel import Kernel
from rota.store.protocol import Statement

PATIENCE_S = 30.0


def damage(kernel: Kernel, sql: str, *parameters: Any) -> list[Any]:
    """Run a statement on the store past all checks, and forget what is remembered of the rows."""
    rows = kernel.store.write(lambda tx: tx.run(Statement(sql, "damage", sql), parameters))
    kernel.env.cache.invalidate()
    return list(rows)


def until(happened: Callable[[], bool]) -> None:
    """Wait until a condition holds; real time only ends a test that would hang."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 200)):
        if happened():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen")


class Background:
    """A supervisor on a thread of its own, which must end without an error."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._supervisor.run()
        except BaseException as failure:
            self._failure = failure

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._supervisor.drain()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
