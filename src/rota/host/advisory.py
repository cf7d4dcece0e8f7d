"""Advisories: a requested setting that the machine did not apply is reported, and is not an error."""

from __future__ import annotations

import errno
import os

import msgspec

__all__ = ["Advisory", "explain_errno"]


class Advisory(msgspec.Struct, frozen=True):
    """A requested setting that is not in force. The work continues without it."""

    what: str  # the field that is not in force
    why: str
    asked: str = ""  # the requested value
    in_force: str = ""

    def __str__(self) -> str:
        """The advisory in one line."""
        asked = f" ({self.asked} requested)" if self.asked else ""
        return f"{self.what}{asked} is not in force: {self.reason}"

    @property
    def reason(self) -> str:
        """Why it is not in force, and what is instead."""
        return f"{self.why}; in force: {self.in_force}" if self.in_force else self.why


_PRIVILEGE = "this needs a privilege that the process does not have (root, CAP_SYS_NICE, or a raised limit)"
_EXPLANATIONS = {
    errno.EPERM: _PRIVILEGE,
    errno.EACCES: _PRIVILEGE,
    errno.ENOSYS: "this system does not have the call",
    errno.EBUSY: "the processors of this machine have no capacity left for it",
    errno.EINVAL: "this system does not accept the value",
    errno.EOPNOTSUPP: "this system does not support it",
}


def explain_errno(number: int) -> str:
    """Explain why the system refused a setting."""
    return f"{_EXPLANATIONS.get(number, os.strerror(number))} [{errno.errorcode.get(number, number)}]"
