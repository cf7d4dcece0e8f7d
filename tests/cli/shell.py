"""Running `rota` as a shell would, in this process: words in, text, complaints and an exit code out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from rota.cli import main

__all__ = ["Answer", "Shell", "make_shell"]


class Answer(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, for programs."""
        return json.loads(self.out)


Shell = Callable[..., Answer]


def make_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell whose commands all work on the store that `ROTA_STORE` names."""

    def run(*words: object) -> Answer:
        monkeypatch.setattr("sys.argv", ["rota", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return run
