"""Fair share in numbers: what a group has used against what its weight entitles it to.

A group's *target* is its weight over the weight of everybody who competes. Its *actual* share is what it
used over what everybody used. The *deficit* is actual minus target: negative is behind, and whoever is
furthest behind goes next.

    A has weight 3 and used 1,000 tokens, B has weight 1 and used 500.
    targets  A 75%                 B 25%
    actual   A 1000/1500 = 66.7%   B 500/1500 = 33.3%
    deficit  A −8.3%               B +8.3%              → A goes next

Before anybody is compared that way there is the *guarantee*: a group that has had no run in the window goes
ahead of all that have. It costs one run per group and window, and nobody is left out of a window.

Why it settles: the deficits of those who compete add up to zero or less, so the furthest behind is at or below
its target when it is picked, and one run of cost c takes it at most c/U above (U: what everybody used). Once U
has grown so far that what a group had at the start is no more than its target, it stays within c/U of it from
above for good. Where only those who compete have used anything the deficits add up to zero, and so none of n
groups can be more than (n−1)·c/U below.

What it does not do:

- It forgets. Usage is counted in a rolling window, so whoever took too much yesterday starts today like
  everybody else. (eevdf never forgets debt.)
- Usage of groups that no longer compete still counts in U. It makes every actual share small, so weights
  decide almost alone until the others have used about as much: heavy groups go first for longer.
- Inside a group it is strict: an unimportant entry of a busy group may starve.
"""

from __future__ import annotations

__all__ = ["deficit_ratio", "deficit_scaled"]


def deficit_scaled(usage: int, total_usage: int, weight: int, total_weight: int) -> int:
    """The deficit times both totals: exact, and in the same order as the deficits themselves."""
    return usage * total_weight - weight * total_usage


def deficit_ratio(usage: int, total_usage: int, weight: float, total_weight: float) -> float:
    """The deficit as a ratio; weights that add up to nothing mean equal shares, whose size orders nobody."""
    target = weight / total_weight if total_weight else 0.0
    return usage / total_usage - target
