"""Logits to an answer: probabilities over the declared slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

READOUT = "quantized last-position logits restricted to declared answer slots; no generated tokens"
UNCALIBRATED = "uncalibrated softmax over the declared options"


@dataclass(frozen=True)
class Answer:
    """One row of logits read at the answer slots."""

    probabilities: list[float]  # one for each slot, summing to 1
    logits: list[float]  # the slots' own
    allowed_token_mass: float  # share of the whole vocabulary's probability on the slots
    argmax: int  # token id, over the whole vocabulary


def read(logits: NDArray[np.float32], slots: Sequence[int], temperature: float = 1.0) -> Answer:
    """Softmax of `logits / temperature`, shape (vocabulary,), restricted to the token ids `slots`, in float64.

    The temperature changes the probabilities only: logits and mass are the model's own.
    """
    row = logits.astype(np.float64)
    chosen = row[list(slots)]
    weights = np.exp((chosen - chosen.max()) / temperature)
    peak = row.max()
    mass = np.exp(chosen - peak).sum() / np.exp(row - peak).sum()
    return Answer(
        probabilities=[float(p) for p in weights / weights.sum()],
        logits=[float(value) for value in chosen],
        allowed_token_mass=float(mass),
        argmax=int(row.argmax()),
    )


def shifts(options: int, orders: int) -> list[int]:
    """By how much to rotate `options` for each of `orders` cyclic orders: evenly spread, the declared order first.

    There are only as many different rotations as options: more orders than that are not made.
    """
    count = min(orders, options)
    return [index * options // count for index in range(count)]


def rotate(items: Sequence[T], shift: int) -> list[T]:
    """`items` beginning with the one at `shift`."""
    return [*items[shift:], *items[:shift]]


def average(probabilities: Sequence[Sequence[float]], shift_of: Sequence[int]) -> tuple[list[float], list[float]]:
    """Mean and spread (largest minus smallest) of each option's probability over the orders it was asked in.

    `probabilities[i]` belongs to the options rotated by `shift_of[i]`; what is returned is in the declared order.
    """
    declared = np.array(
        [rotate(row, len(row) - shift) for row, shift in zip(probabilities, shift_of, strict=True)], dtype=np.float64
    )
    return declared.mean(axis=0).tolist(), (declared.max(axis=0) - declared.min(axis=0)).tolist()
