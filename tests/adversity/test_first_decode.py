"""Several threads decode into a type for the first time at the same moment: nothing crashes.

Each round is a process with types that nobody has decoded yet. With msgspec alone about one process in forty ends by
a segmentation fault. Rounds are forked by a process of their own: a fork of the one that runs all tests copies the
tables of its memory, which takes a tenth of a second.
"""

from __future__ import annotations

import os
import subprocess
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


def _fork_for_each_line() -> None:
    """Run a round for each line of the standard input, and print how it ended."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                _decode_first()
            except BaseException:
                os._exit(1)
            os._exit(0)
        print(os.waitpid(pid, 0)[1], flush=True)


def test_a_first_decode_on_several_threads_crashes_nothing(rounds: Rounds) -> None:
    code = f"from {__name__} import _fork_for_each_line; _fork_for_each_line()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as forker:
        assert forker.stdin is not None
        assert forker.stdout is not None
        for seed in rounds(ROUNDS):
            print(seed, file=forker.stdin)
            assert forker.stdout.readline() == "0\n", f"round {seed}"
        forker.stdin.close()
    assert forker.returncode == 0
