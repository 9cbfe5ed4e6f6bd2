"""The fit of temperatures: by hand, by a known truth, and measured on nothing that it has seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ops.calibrate.fit import (
    FOLDS,
    Difference,
    Effect,
    Sample,
    Scores,
    effect,
    fit,
    fit_temperature,
    folds,
    gaps,
    log_softmax,
    out_of_fold,
    scores,
)


def drawn(rows: int, temperature: float, *, options: int = 3, kind: str = "choice", seed: int = 1) -> Sample:
    """Labels drawn from softmax(logits / temperature): by construction this is the temperature to find."""
    random = np.random.default_rng(seed)
    logits = random.normal(scale=4, size=(rows, options))
    p = np.exp(log_softmax(logits, temperature))
    labels = [int(random.choice(options, p=row)) for row in p]
    return Sample.of(logits.tolist(), labels, [kind] * rows, [f"{kind}-{row // 2}" for row in range(rows)])


def joined(*samples: Sample) -> Sample:
    return Sample.of(
        [[value for value in row if math.isfinite(value)] for each in samples for row in each.logits.tolist()],
        [label for each in samples for label in each.labels.tolist()],
        [kind for each in samples for kind in each.types],
        [group for each in samples for group in each.groups],
    )


def test_a_temperature_by_hand() -> None:
    """Logits 2 and 0, right in three of four: softmax(2/T, 0) must be 3/4, so 2/T = ln 3."""
    sample = Sample.of([[2.0, 0.0]] * 4, [0, 0, 0, 1], ["noul"] * 4, list("abcd"))
    found = fit_temperature(sample)
    assert found.value == pytest.approx(2 / math.log(3), rel=1e-9)
    assert not found.at_bound
    # Slopes of 1/T are -1/2 three times and 3/2, the curvature 4 * 4 * 3/16, G/(G-1) = 4/3.
    error = math.sqrt(4 / 3 * (3 * 0.5**2 + 1.5**2)) / 3
    assert found.high == pytest.approx(found.value * math.exp(1.96 * error * found.value), rel=1e-6)
    assert found.low == pytest.approx(found.value**2 / found.high, rel=1e-6)


def test_rows_of_one_group_count_as_one_observation() -> None:
    apart = Sample.of([[2.0, 0.0]] * 8, [0, 0, 0, 1] * 2, ["noul"] * 8, list("abcdefgh"))
    together = Sample.of([[2.0, 0.0]] * 8, [0, 0, 0, 1] * 2, ["noul"] * 8, list("abcdabcd"))
    one, two = fit_temperature(apart), fit_temperature(together)
    assert one.value == two.value
    assert two.high > 1.1 * one.high


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.5])
def test_a_known_temperature_is_found_within_its_interval(truth: float) -> None:
    found = fit_temperature(drawn(2000, truth))
    assert found.value == pytest.approx(truth, rel=0.12)
    assert found.low < truth < found.high


def test_rows_with_fewer_options_weigh_what_they_have() -> None:
    two, five = drawn(800, 2, options=2), drawn(800, 2, options=5, seed=2)
    both = fit_temperature(joined(two, five))
    assert both.value == pytest.approx(2, rel=0.15)
    alone = Sample.of([[2.0, 0.0], [2.0, 0.0, -1.0]], [1, 0], ["choice"] * 2, ["a", "b"])
    expected = [math.exp(1) / (math.exp(1) + 1), math.exp(1) / (math.exp(1) + 1 + math.exp(-0.5))]
    assert np.exp(log_softmax(alone.logits, 2.0))[:, 0] == pytest.approx(expected)


def test_a_model_that_is_worse_than_chance_has_no_temperature() -> None:
    sample = Sample.of([[2.0, 0.0]] * 4, [1, 1, 1, 0], ["noul"] * 4, list("abcd"))
    assert fit_temperature(sample).at_bound


def test_scores_by_hand() -> None:
    log_p = np.log(np.array([[0.9, 0.1], [0.6, 0.4], [0.62, 0.38]]))
    found = scores(log_p, np.array([0, 1, 0]))
    assert found.nll == pytest.approx(-(math.log(0.9) + math.log(0.4) + math.log(0.62)) / 3)
    assert found.brier == pytest.approx((2 * 0.01 + 2 * 0.36 + 2 * 0.38**2) / 3)
    # Three bins: 0.9 is right (a gap of -0.1), 0.6 wrong (0.6), 0.62 right (-0.38).
    assert found.ece == pytest.approx((0.1 + 0.6 + 0.38) / 3)


def test_gaps_cancel_within_a_bin_and_one_belongs_to_the_last() -> None:
    log_p = np.log(np.array([[0.72, 0.28], [0.74, 0.26], [1.0, 1e-300]]))
    found = gaps(log_p, np.array([0, 1, 1]))
    assert found.sum(axis=0)[7] == pytest.approx(-0.28 + 0.74)
    assert found[2].tolist() == [0] * 9 + [1]


def test_folds_keep_groups_whole_and_never_change() -> None:
    groups = [f"g{row % 23}" for row in range(200)]
    found = folds(groups)
    assert {len({fold for fold, each in zip(found, groups, strict=True) if each == name}) for name in groups} == {1}
    assert folds(list(reversed(groups))).tolist() == found.tolist()[::-1]
    counts = np.bincount(found, minlength=FOLDS)
    assert counts.max() - counts.min() <= 18  # no more than two groups
    assert set(folds(list("abcde"))) == set(range(5))
    uneven = ["large"] * 100 + [f"small-{row // 5}" for row in range(100)]
    assert sorted(np.bincount(folds(uneven))) == [25, 25, 25, 25, 100]


def test_a_row_does_not_influence_its_own_temperature() -> None:
    """Labels of one fold are turned around: its own temperatures must not notice, all others must."""
    sample = drawn(200, 2)
    fold_of = folds(sample.groups)
    before = out_of_fold(sample, frozenset({"choice"}))
    turned = np.where(fold_of == 0, (sample.labels + 1) % 3, sample.labels)
    after = out_of_fold(Sample(sample.logits, turned, sample.types, sample.groups), frozenset({"choice"}))
    assert (after == before)[fold_of == 0].all()
    assert (after != before)[fold_of != 0].all()


def test_each_type_gets_its_own_and_a_small_one_the_overall() -> None:
    parts = drawn(400, 1, kind="noul", options=2), drawn(400, 3, seed=2), drawn(60, 3, kind="score", seed=3)
    found = fit(joined(*parts))
    own = {kind: each.temperature and each.temperature.value for kind, each in found.by_type.items()}
    assert own["noul"] == pytest.approx(1, rel=0.2)
    assert own["choice"] == pytest.approx(3, rel=0.2)
    assert own["score"] is None
    assert found.by_type["score"].lacks == "60 rows, at least 100 are needed"
    assert found.typed.pays
    assert found.typed.after.nll < found.plain.after.nll < found.plain.before.nll
    assert found.by_type["choice"].effect.nll.high < 0
    assert found.typed.rows == 860


@pytest.mark.parametrize(
    ("rows", "right", "groups", "reason"),
    [
        (99, 50, 99, "99 rows, at least 100 are needed"),
        (100, 81, 100, "81 right and 19 wrong answers, at least 20 of each are needed"),
        (100, 19, 100, "19 right and 81 wrong answers, at least 20 of each are needed"),
        (100, 50, 4, "4 groups, at least 5 are needed"),
        (100, 80, 5, None),
    ],
)
def test_how_much_is_enough(rows: int, right: int, groups: int, reason: str | None) -> None:
    labels = [0] * right + [1] * (rows - right)
    sample = Sample.of([[1.0, 0.0]] * rows, labels, ["noul"] * rows, [str(row % groups) for row in range(rows)])
    assert sample.lacks() == reason


@pytest.mark.parametrize(
    ("nll", "ece", "pays"), [((-0.2, -0.1), -0.01, True), ((-0.2, 0.01), -0.01, False), ((-0.2, -0.1), 0.01, False)]
)
def test_it_pays_where_the_likelihood_surely_improves_and_the_calibration_is_no_worse(
    nll: tuple[float, float], ece: float, pays: bool
) -> None:
    score = Scores(1, 1, 1)
    found = Effect(9, 3, score, score, nll=Difference(-0.1, *nll), ece=Difference(ece, -0.1, 0.1))
    assert found.pays is pays


def test_what_was_calibrated_already_does_not_pay() -> None:
    assert not fit(drawn(300, 1.0)).typed.pays


def test_a_difference_by_hand_and_its_interval_from_the_groups() -> None:
    """Two groups of opposite effect: of resamples half are mixed, a quarter each has one of the two only."""
    sample = Sample.of([[1.0, 0.0]] * 4, [0, 0, 1, 1], ["noul"] * 4, ["a", "a", "b", "b"])
    found = effect(sample, np.full(4, 2.0))
    right, wrong = (
        math.log(1 + math.exp(sign / 2)) - math.log(1 + math.exp(sign)) for sign in (-1, 1)
    )  # log(1 + e^-x) and log(1 + e^x): the label's negative log likelihood
    assert found.nll.value == pytest.approx((right + wrong) / 2)
    assert found.nll.low == pytest.approx(wrong)
    assert found.nll.high == pytest.approx(right)
