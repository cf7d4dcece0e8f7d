"""Money: exact whole numbers inside, dollars for people.

A cost is a number of millionths of a US dollar, the dimension `cost_micro`. Files and commands may give it in dollars,
as a decimal number; no step of the conversion rounds in binary.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["COST_DIM", "MICRO", "USD", "amount_text", "amounts_text", "dim_text", "dollars", "in_micro", "micro_of"]

COST_DIM = "cost_micro"
USD = "usd"  # how files and commands name a cost in dollars
MICRO = 1_000_000  # in one dollar
_CENT = 10_000


def micro_of(value: Any) -> int:
    """Return dollars, as a decimal text or a number, in millionths; `ValueError` if they are not exact or negative."""
    text = str(value).strip().removeprefix("$").replace(",", "")  # of a float: the shortest decimal that it stands for
    try:
        micro = Decimal(text) * MICRO
    except InvalidOperation:
        raise ValueError(f"{value!r} is not an amount of dollars") from None
    if not micro.is_finite() or micro < 0:
        raise ValueError(f"{value!r} is not an amount of dollars, 0 or more")
    if micro != micro.to_integral_value():
        raise ValueError(f"{value!r} has more than six digits after the point")
    return int(micro)


def in_micro(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Return amounts by dimension with `usd` as cost_micro; `ValueError` if it is not exact, or both are given."""
    if USD not in amounts:
        return dict(amounts)
    if COST_DIM in amounts:
        raise ValueError(f"{USD} and {COST_DIM} are the same; give one of them")
    return {COST_DIM if dim == USD else dim: micro_of(each) if dim == USD else each for dim, each in amounts.items()}


def dollars(micro: int) -> str:
    """Return an amount for people: $1,234.50; amounts below ten cents with up to six digits after the point."""
    sign, size = ("-" if micro < 0 else ""), abs(micro)
    if size >= 10 * _CENT or not size:
        cents = (size + _CENT // 2) // _CENT
        return f"{sign}${cents // 100:,}.{cents % 100:02}"
    digits = f"{size:06}".rstrip("0")
    return f"{sign}$0.{digits:0<2}"


def amount_text(dim: str, amount: int) -> str:
    """Return an amount of a dimension for people: a cost in dollars, anything else as a number."""
    return dollars(amount) if dim == COST_DIM else f"{amount:,}"


def dim_text(dim: str) -> str:
    """Return the name of a dimension for people."""
    return "cost" if dim == COST_DIM else dim


def amounts_text(amounts: Mapping[str, int]) -> str:
    """Return amounts by dimension for people: 1,200 tokens and $0.25."""
    shown = (dollars(amount) if dim == COST_DIM else f"{amount:,} {dim}" for dim, amount in amounts.items())
    return " and ".join(shown)
