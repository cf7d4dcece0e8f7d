"""Who writes: the author that every event records.

No function passes the author on. It is set once, where the caller is known, and holds for everything that is called
from there on the same thread: a daemon sets its client's name, a supervisor its worker's, the kernel that of a run. A
program that sets nothing writes as the user that it runs as.

One commit has the requests of many callers, and the thread that commits may belong to another one. So a request keeps
the author of the caller that made it (`requests.py`), and the commit itself has none.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import cache
from typing import Any, TypeVar

__all__ = ["MAINTENANCE", "acting_as", "author_of_caller", "current_author", "keeping_author", "process_user"]

T = TypeVar("T")
MAINTENANCE = "rota:maintenance"  # the author of what happens because time passes, in any caller's transaction
author_of_caller: ContextVar[str | None] = ContextVar("author_of_caller", default=None)  # None: the process's user


class acting_as:  # noqa: N801  # used like a function: with acting_as("worker:box"):
    """Make this the author of what the block writes; None is the user of this process."""

    __slots__ = ("_author", "_before")

    def __init__(self, author: str | None) -> None:
        self._author = author

    def __enter__(self) -> None:
        self._before: Token[str | None] = author_of_caller.set(self._author)

    def __exit__(self, *_: object) -> None:
        author_of_caller.reset(self._before)


def keeping_author(call: Callable[..., T]) -> Callable[..., T]:
    """Return a function for another thread that makes this call as the present author."""
    author = author_of_caller.get()

    def with_author(*args: Any, **kwargs: Any) -> T:
        with acting_as(author):
            return call(*args, **kwargs)

    return with_author


def current_author() -> str:
    """Return the author of what is written now."""
    return author_of_caller.get() or process_user()


@cache  # a system call for every event would cost as much as the rest of its author
def process_user() -> str:
    """Return the user that this process runs as."""
    uid = os.getuid()
    try:
        return f"user:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user:{uid}"


os.register_at_fork(after_in_child=process_user.cache_clear)  # a child may become another user
