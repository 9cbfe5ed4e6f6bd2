"""Whether averaging over orders pays: not by being less sure, only by knowing more."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ops.calibrate.answers import ask_both_ways
from ops.calibrate.fit import log_softmax
from ops.calibrate.order_effect import Asked, order_effect
from ops.labelled import Labelled


def _asked(label: int, single: list[float], averaged: list[float], **changes: Any) -> Asked:
    found: dict[str, Any] = {
        "label": label,
        "question_type": "choice",
        "group": "g",
        "single": single,
        "averaged": averaged,
        "spread": [0.2, 0.2],
        "single_cost": None,
        "averaged_cost": None,
        **changes,
    }
    return Asked(**found)


def test_the_comparison_by_hand() -> None:
    rows = [
        _asked(0, [0.4, 0.6], [0.7, 0.3], group="a", spread=[0.5, 0.4], single_cost=(100, 20.0)),
        _asked(1, [0.2, 0.8], [0.3, 0.7], group="b", spread=[0.1, 0.1], averaged_cost=(250, 50.0)),
    ]
    found = order_effect(rows)
    assert (found.rows, found.flips) == (2, 1)
    assert found.moved == pytest.approx(0.3)
    assert (found.single_accuracy, found.averaged_accuracy, found.accuracy.value) == (0.5, 1.0, 0.5)
    assert found.brier.value == pytest.approx((2 * 0.3**2 + 2 * 0.3**2 - 2 * 0.6**2 - 2 * 0.2**2) / 2)
    assert found.nll.value == pytest.approx((math.log(0.4 / 0.7) + math.log(0.8 / 0.7)) / 2)
    assert found.single_cost is not None
    assert found.averaged_cost is not None
    assert (found.single_cost.tokens, found.averaged_cost.milliseconds) == (100, 50.0)


def _noisy(rows: int, *, order_noise: float, temper: float) -> list[Asked]:
    """A model that knows the truth's logits but for noise, which an average of four orders halves."""
    random = np.random.default_rng(3)
    truth = random.normal(scale=1.5, size=(rows, 3))
    p = np.exp(log_softmax(truth))
    labels = [int(random.choice(3, p=row)) for row in p]
    noise = random.normal(scale=order_noise, size=(rows, 3))
    single = np.exp(log_softmax((truth + noise) * 3))
    averaged = np.exp(log_softmax((truth + noise / 2) * temper))
    return [
        _asked(label, list(one), list(four), group=str(row), spread=[0.1] * 3)
        for row, (label, one, four) in enumerate(zip(labels, single, averaged, strict=True))
    ]


def test_being_less_sure_alone_does_not_pay() -> None:
    found = order_effect(_noisy(400, order_noise=0, temper=1.5))
    assert found.nll.high < 0  # it looks better
    assert not found.pays


def test_knowing_more_pays() -> None:
    assert order_effect(_noisy(400, order_noise=1.5, temper=3)).pays


def test_only_what_is_asked_first_of_a_new_state_counts_for_the_cost() -> None:
    asked: list[tuple[str, int]] = []

    def decide(decision: Any) -> dict[str, Any]:
        orders = decision.get("permutations", 1)
        asked.append((decision["id"], orders))
        answer: dict[str, Any] = {
            "option_ids": ["x", "y"],
            "probabilities": [0.5, 0.5],
            "input_tokens": 100 * orders,
            "cached_tokens": 10 * orders,
            "total_seconds": 0.25 * orders,
        }
        return answer if orders == 1 else {**answer, "permutations": {"orders": orders, "spread": [0.0, 0.0]}}

    options = [{"id": "x", "description": "X"}, {"id": "y", "description": "Y"}]
    rows = [
        Labelled(id_, "choice", id_, {"id": id_, "state": state, "question": "?", "options": options}, 1, "")
        for id_, state in (("1", "s"), ("2", "t"), ("3", "s"), ("4", "u"))
    ]
    found = ask_both_ways(rows, decide, orders=2)
    assert asked == [("1", 1), ("1", 2), ("2", 2), ("2", 1), ("3", 1), ("3", 2), ("4", 1), ("4", 2)]
    assert [row.single_cost for row in found] == [(90, 250.0), None, None, (90, 250.0)]
    assert [row.averaged_cost for row in found] == [None, (180, 500.0), None, None]
