"""The common time: how far all cores have come, in virtual time.

Every core has its own virtual time, and a *base* that makes it comparable with those of the others (`placement`). At
any moment these times differ: the core on which one more entity waits runs behind, and catches up when that one has
gone. The common time is what they agree on. It passes at a measured speed, and follows each core that is compared, by
one part in `FOLLOWED_PART` of the difference, so that no single core decides.

Two things need it:

- **What a competitor is owed** is its weight times the speed. A heavy entity may be worth a whole core.
- **What a sleeper keeps.** An entity that blocks keeps its lag to the common time, and not to the time of its core. The
  difference matters for those that come and go. Two hogs on two cores, and two threads that wake each other, one on
  each core:

      a thread is runnable   the time of its core passes at 1/2, that of the other core at 1
      it sleeps              it is the other way round

  Measured by the time of its core, each thread gets its half of a core, and together they get half a core. But at any
  moment three compete for two cores, and the fluid share is two thirds. Measured by the common time, a thread is owed
  that while it is runnable, and the core catches up with it while it sleeps.
"""

from __future__ import annotations

__all__ = ["CommonTime"]

SPEED_WINDOW_NS = 100_000_000  # how often the speed is measured
FOLLOWED_PART = 8  # of the difference to a core that is compared: small enough that no single core decides


class CommonTime:
    """The common time of the cores of one engine, and its speed."""

    __slots__ = ("_measured", "origin", "speed")

    def __init__(self) -> None:
        self.speed = 0  # virtual time per ns; 0 until it was measured
        self.origin = 0  # the common time at instant 0, at this speed
        self._measured = 0, 0  # the instant of the last measurement, and the time of the core then

    def at(self, now: int) -> int:
        """The common time at an instant."""
        return self.origin + self.speed * now

    def follow(self, core_time: int, now: int) -> None:
        """A core is compared with others. Before the speed is known the time of the last one counts."""
        distance = core_time - self.at(now)
        self.origin += distance // FOLLOWED_PART if self.speed else distance

    def measure(self, core_time: int, now: int) -> None:
        """Several compete on a core: measure the speed there, once in a window. One quarter of the last one counts."""
        at, before = self._measured
        if now - at >= SPEED_WINDOW_NS:
            speed = max(0, core_time - before) // (now - at)
            self._set_speed((self.speed + 3 * speed) // 4 if self.speed else speed, now)
            self._measured = now, core_time

    def measure_at_most(self, measured: tuple[int, int], core_time: int, now: int) -> tuple[int, int]:
        """Correct the speed downwards, by what was measured on a core before; return what to measure by next."""
        at, before = measured
        if now - at < SPEED_WINDOW_NS:
            return measured
        if now - at < 2 * SPEED_WINDOW_NS:  # else it was not so all the time
            self._set_speed(min(self.speed, max(0, core_time - before) // (now - at)), now)
        return now, core_time

    def _set_speed(self, speed: int, now: int) -> None:
        """From now on the time passes at another speed."""
        self.origin, self.speed = self.at(now) - speed * now, speed
