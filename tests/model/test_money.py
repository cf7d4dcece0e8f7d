"""Money is exact: dollars to millionths and back, and the price of tokens."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.money import amount_text, dollars, micro_of
from rota.model.prices import ModelPrice, price_of, priced

GPT = ModelPrice(input_micro=2_500_000, output_micro=10_000_000, cached_input_micro=250_000)


@pytest.mark.parametrize(
    ("given", "micro"),
    [(5, 5_000_000), (0.1, 100_000), (2.675, 2_675_000), ("$1,234.50", 1_234_500_000), ("0.000001", 1), (0, 0)],
)
def test_dollars_become_millionths(given: object, micro: int) -> None:
    assert micro_of(given) == micro


@pytest.mark.parametrize("bad", [-1, 0.0000001, "x", "", None, True, float("nan"), float("inf"), [1]])
def test_what_is_not_an_exact_amount_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"dollars|digits"):
        micro_of(bad)


@given(st.integers(0, 10**12))
def test_every_amount_of_a_file_is_exact(micro: int) -> None:
    assert micro_of(float(Decimal(micro) / 1_000_000)) == micro


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (0, "$0.00"), (1_230_000, "$1.23"), (1_234_567_890, "$1,234.57"), (12_345, "$0.012345"), (50_000, "$0.05"),
        (100, "$0.0001"), (-1_500_000, "-$1.50"),
    ],
)  # fmt: skip
def test_people_see_dollars(micro: int, text: str) -> None:
    assert dollars(micro) == text
    assert amount_text("cost_micro", micro) == text
    assert amount_text("tokens", 12_000) == "12,000"


def test_tokens_of_a_model_get_their_cost_and_their_sum() -> None:
    given = {"input_tokens": 1_000, "cached_input_tokens": 400, "output_tokens": 200}
    assert priced(given, "gpt-x", {"gpt-x": GPT}).amounts == {**given, "tokens": 1_600, "cost_micro": 4_600}
    assert priced(given, None, {"gpt-x": GPT}).amounts == {**given, "tokens": 1_600}


def test_what_the_program_gives_is_kept() -> None:
    given = {"input_tokens": 1_000, "tokens": 7, "cost_micro": 9}
    assert priced(given, "gpt-x", {"gpt-x": GPT}) == (given, None)


def test_what_cannot_be_priced_is_said() -> None:
    assert 'no price for model gpt-y: its tokens have no cost. Add [prices."gpt-y"]' in str(
        priced({"input_tokens": 5}, "gpt-y", {"gpt-x": GPT}).advisory
    )
    assert "not only tokens" in str(priced({"tokens": 5}, "gpt-x", {"gpt-x": GPT}).advisory)
    assert priced({"tokens": 5}, "gpt-x", {}).advisory is None  # the fleet has no prices
    assert priced({"tool_calls": 5}, "gpt-y", {"gpt-x": GPT}).advisory is None  # and nothing to price


def test_the_longest_name_that_fits_is_the_price() -> None:
    small = ModelPrice(input_micro=1, output_micro=1)
    prices = {"gpt-*": GPT, "gpt-x-mini*": small}
    assert price_of("gpt-x-mini-2026", prices) == small
    assert price_of("gpt-x", prices) == GPT
    assert price_of("other", prices) is None
