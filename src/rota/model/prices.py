"""Prices of models: what tokens cost, in exact whole numbers.

A program that knows its cost charges it. One that only knows its tokens names the model and charges `input_tokens`,
`cached_input_tokens` (read from the provider's cache, not counted as input) and `output_tokens`; its supervisor adds
the cost, and `tokens` as their sum. Prices are dollars per million tokens in a fleet file, and millionths of a dollar
per million tokens inside:

    2.50 dollars per million, 1,200 tokens  →  2_500_000 * 1_200 / 1_000_000 = 3_000 millionths of a dollar

A name that ends in * is the price of every model that begins so; the longest name that fits counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rota.errors import InvalidPayload
from rota.model.checks import AMOUNT_MAX, Checks
from rota.model.money import COST_DIM

__all__ = ["PRICES_MAX", "TOKEN_PARTS", "ModelPrice", "Priced", "price_of", "priced"]

PRICES_MAX = 1_000  # models with a price in one store
TOKEN_PARTS = ("input_tokens", "cached_input_tokens", "output_tokens")
_PER = 1_000_000  # tokens that a price is for
_checks = Checks("ModelPrice", InvalidPayload)


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a million tokens of a model cost, in millionths of a dollar."""

    input_micro: int
    output_micro: int
    cached_input_micro: int | None = None  # None: the same as input

    def __post_init__(self) -> None:
        for field in ("input_micro", "output_micro"):
            _checks.whole(field, getattr(self, field), 0, AMOUNT_MAX)
        if self.cached_input_micro is not None:
            _checks.whole("cached_input_micro", self.cached_input_micro, 0, AMOUNT_MAX)

    def cost_micro(self, amounts: Mapping[str, int]) -> int:
        """Return what tokens cost, rounded to the nearest millionth of a dollar."""
        cached = self.input_micro if self.cached_input_micro is None else self.cached_input_micro
        prices = dict(zip(TOKEN_PARTS, (self.input_micro, cached, self.output_micro), strict=True))
        return (sum(amounts.get(part, 0) * price for part, price in prices.items()) + _PER // 2) // _PER


class Priced(NamedTuple):
    """A charge with what follows from it, and what could not be computed."""

    amounts: dict[str, int]
    advisory: str | None = None


def price_of(model: str, prices: Mapping[str, ModelPrice]) -> ModelPrice | None:
    """Return the price of a model, by its name or by the longest name with a * that fits."""
    if model in prices:
        return prices[model]
    fitting = [name for name in prices if name.endswith("*") and model.startswith(name[:-1])]
    return prices[max(fitting, key=len)] if fitting else None


def priced(amounts: Mapping[str, int], model: str | None, prices: Mapping[str, ModelPrice]) -> Priced:
    """Return a charge with its tokens and cost, where the program has not given them and they can be computed."""
    full = dict(amounts)
    parts = sum(full.get(part, 0) for part in TOKEN_PARTS)
    if parts and "tokens" not in full:
        full["tokens"] = parts
    if model is None or not prices or COST_DIM in full or not full.get("tokens"):
        return Priced(full)
    price = price_of(model, prices)
    if price is None:
        text = f'no price for model {model}: its tokens have no cost. Add [prices."{model}"] to the fleet file.'
        return Priced(full, text)
    if not parts:
        return Priced(full, f"no cost for model {model}: charge input_tokens and output_tokens, not only tokens.")
    full[COST_DIM] = min(price.cost_micro(full), AMOUNT_MAX)
    return Priced(full)
