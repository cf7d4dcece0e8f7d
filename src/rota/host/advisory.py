"""What was asked and is not in force: said aloud, never a crash."""

from __future__ import annotations

import errno
import os

import msgspec

__all__ = ["Advisory", "reason"]


class Advisory(msgspec.Struct, frozen=True):
    """Something was asked and this machine did not give it; the work goes on without."""

    what: str  # the field that is not in force
    why: str
    asked: str = ""
    in_force: str = ""

    def __str__(self) -> str:
        """One line for people."""
        asked = f" ({self.asked} was asked)" if self.asked else ""
        instead = f"; in force: {self.in_force}" if self.in_force else ""
        return f"{self.what}{asked} is not in force: {self.why}{instead}"


_RIGHTS = "this needs a right that the process does not have (root, CAP_SYS_NICE, or a limit raised for it)"
_WHY = {
    errno.EPERM: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.ENOSYS: "this system does not know the call",
    errno.EBUSY: "the machine's processors have no room for it",
    errno.EINVAL: "this system does not take that value",
    errno.EOPNOTSUPP: "this system does not offer it",
}


def reason(number: int) -> str:
    """What an errno means for somebody who asked for more than the machine gives."""
    return f"{_WHY.get(number, os.strerror(number))} [{errno.errorcode.get(number, number)}]"
