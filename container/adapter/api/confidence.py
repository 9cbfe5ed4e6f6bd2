"""How sure a distribution is, as one number from 0 (uniform) to 1: the formulas of TypeSafe's System One."""

from __future__ import annotations

from collections.abc import Sequence


def choice_confidence(probabilities: Sequence[float]) -> float:
    """How far the largest of two or more probabilities is above what chance would give it."""
    chance = 1 / len(probabilities)
    return _clip((max(probabilities) - chance) / (1 - chance))


def score_confidence(probabilities: Sequence[float]) -> float:
    """How close two or more ordered levels' probability lies to the likeliest level.

    The mean distance to that level, relative to a uniform distribution's mean distance to the middle of the scale.
    """
    count = len(probabilities)
    likeliest = probabilities.index(max(probabilities))
    distance = sum(p * abs(level - likeliest) for level, p in enumerate(probabilities))
    uniform = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
    return _clip(1 - distance / uniform)


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
