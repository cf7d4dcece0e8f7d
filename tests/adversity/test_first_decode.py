"""Several threads decode into a type for the first time at the same moment: nothing crashes.

Each round is a process with types that nobody has decoded yet. With msgspec alone about one process in forty ends by
a segmentation fault.
"""

from __future__ import annotations

import os
import sys
import threading
import types

from rota.decoding import convert, decode_json
from tests.adversity.conftest import Rounds

ROUNDS = 150
THREADS = 3
TYPES = """
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    names: tuple[str, ...] = ()
    number: int | None = None
    numbers: dict[str, int] = {}
    nested: list[dict[str, tuple[int, ...]]] = []

class Outer(msgspec.Struct):
    inner: Inner | None = None
    more: dict[str, Inner] = {}
    numbers: list[int] = []
"""
TEXT = b'{"inner": {"names": ["x"], "number": 3}, "more": {"k": {"names": []}}}'


def _decode_first() -> None:
    module = sys.modules["new_types"] = types.ModuleType("new_types")
    exec(TYPES, module.__dict__)
    sys.setswitchinterval(1e-6)
    start = threading.Barrier(THREADS)

    def decode(index: int) -> None:
        start.wait()
        if index:
            decode_json(TEXT, module.Outer)
        else:
            convert({"inner": {"number": 3}}, module.Outer)

    threads = [threading.Thread(target=decode, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_first_decode_on_several_threads_crashes_nothing(rounds: Rounds) -> None:
    for _ in rounds(ROUNDS):
        pid = os.fork()
        if pid == 0:
            try:
                _decode_first()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
