"""The confidence formulas, against those of the conformance suite and against values worked out by hand."""

from __future__ import annotations

import random

import pytest
from jevcompat import validate

from adapter.api.confidence import choice_confidence, score_confidence


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [([0.5, 0.5], 0.0), ([1.0, 0.0, 0.0], 1.0), ([0.6, 0.2, 0.2], 0.4), ([0.25] * 4, 0.0)],
)
def test_choice(probabilities: list[float], expected: float) -> None:
    assert choice_confidence(probabilities) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([1.0, 0.0, 0.0], 1.0),
        ([0.5, 0.0, 0.5], 0.0),  # mean distance 1 to the first level, more than a uniform distribution's 2/3
        ([0.5, 0.5, 0.0], 0.25),  # 1 - 0.5 / (2/3)
        ([0.2, 0.6, 0.2], 0.4),
    ],
)
def test_score_counts_how_far_off_the_rest_is(probabilities: list[float], expected: float) -> None:
    assert score_confidence(probabilities) == pytest.approx(expected)


def test_both_agree_with_the_reference_on_random_distributions() -> None:
    generator = random.Random(7)  # noqa: S311 - a test
    for _ in range(200):
        weights = [generator.random() for _ in range(generator.randint(2, 10))]
        probabilities = [weight / sum(weights) for weight in weights]
        assert choice_confidence(probabilities) == pytest.approx(validate.choice_confidence(probabilities), abs=1e-9)
        assert score_confidence(probabilities) == pytest.approx(validate.score_confidence(probabilities), abs=1e-9)
