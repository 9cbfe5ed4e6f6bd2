"""Logits to probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adapter.readout import average, read, rotate, shifts


def test_softmax_over_the_slots_and_their_share_of_the_vocabulary() -> None:
    logits = np.log(np.array([1, 2, 3, 4], dtype=np.float32))
    answer = read(logits, [3, 1])
    assert answer.probabilities == pytest.approx([4 / 6, 2 / 6], rel=1e-6)
    assert answer.allowed_token_mass == pytest.approx(0.6, rel=1e-6)
    assert answer.logits == [float(logits[3]), float(logits[1])]
    assert answer.argmax == 3


def test_large_logits_neither_overflow_nor_lose_the_small() -> None:
    answer = read(np.array([1000, 990, -1000], dtype=np.float32), [0, 1])
    assert answer.probabilities[1] == pytest.approx(math.exp(-10) / (1 + math.exp(-10)))
    assert math.fsum(answer.probabilities) == pytest.approx(1, abs=1e-15)
    assert answer.allowed_token_mass == pytest.approx(1)


def test_slots_far_below_the_likeliest_token_still_get_probabilities() -> None:
    answer = read(np.array([2000, 0, 1], dtype=np.float32), [1, 2])
    assert answer.probabilities == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert answer.allowed_token_mass == 0.0
    assert answer.argmax == 0


def test_a_temperature_divides_the_logits_and_leaves_the_mass() -> None:
    logits = np.array([0, 2, 4, 9], dtype=np.float32)
    cold, warm = read(logits, [1, 2]), read(logits, [1, 2], temperature=2)
    assert warm.probabilities == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert (warm.logits, warm.allowed_token_mass) == (cold.logits, cold.allowed_token_mass)


@pytest.mark.parametrize(
    ("options", "orders", "expected"),
    [(3, 1, [0]), (4, 2, [0, 2]), (6, 4, [0, 1, 3, 4]), (2, 8, [0, 1]), (8, 8, [0, 1, 2, 3, 4, 5, 6, 7])],
)
def test_orders_are_different_rotations_spread_evenly(options: int, orders: int, expected: list[int]) -> None:
    assert shifts(options, orders) == expected


def test_averaging_puts_each_order_back_and_tells_how_far_they_differ() -> None:
    declared = [0.5, 0.3, 0.2]
    assert rotate(declared, 1) == [0.3, 0.2, 0.5]
    mean, spread = average([[0.5, 0.3, 0.2], [0.1, 0.4, 0.5]], [0, 1])  # the second: options 1, 2, 0
    assert mean == pytest.approx([0.5, 0.2, 0.3])
    assert spread == pytest.approx([0.0, 0.2, 0.2])
