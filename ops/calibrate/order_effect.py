"""What the order of the options does to answers, and whether averaging over orders is worth its cost. Arrays only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ops.calibrate.fit import Difference, Floats, Sample, Scores, log_softmax, mean_difference, out_of_fold, row_scores
from ops.calibrate.fit import scores as scores_of

_SMALLEST = 1e-300  # its logarithm is finite, and no score notices


@dataclass(frozen=True)
class Cost:
    """What one decision takes where its state was not seen before; means over `rows` decisions."""

    rows: int
    tokens: float  # evaluated, without those that were reused
    milliseconds: float  # in the server


@dataclass(frozen=True)
class Asked:
    """One labelled decision, asked in the declared order and averaged over orders; lists are in the declared order."""

    label: int
    question_type: str
    group: str
    single: Sequence[float]  # probabilities
    averaged: Sequence[float]
    spread: Sequence[float]  # largest minus smallest probability over the orders
    # Tokens evaluated and milliseconds of whichever was asked first, if the state was new then.
    single_cost: tuple[int, float] | None
    averaged_cost: tuple[int, float] | None


@dataclass(frozen=True)
class OrderEffect:
    """One order and the average compared; differences are paired, averaged minus single."""

    rows: int
    moved: float  # mean over rows of the largest spread of any option
    flips: int  # rows in which the average chooses another option
    single: Scores
    averaged: Scores
    single_accuracy: float
    averaged_accuracy: float
    accuracy: Difference
    brier: Difference
    nll: Difference
    # Of the negative log likelihoods with a temperature each, fitted out of fold.
    nll_at_own_temperature: Difference
    single_cost: Cost | None
    averaged_cost: Cost | None

    @property
    def pays(self) -> bool:
        """Whether averaged answers are surely better than what a temperature makes of a single order.

        An average is less sure, which alone improves a model that was too sure: a temperature does that for nothing.
        """
        return self.nll_at_own_temperature.high < 0


def order_effect(rows: Sequence[Asked]) -> OrderEffect:
    """Compare the two ways of asking over at least one row."""
    single, averaged = _sample(rows, [row.single for row in rows]), _sample(rows, [row.averaged for row in rows])
    log_p = [log_softmax(sample.logits) for sample in (single, averaged)]
    own = [log_softmax(sample.logits, out_of_fold(sample)) for sample in (single, averaged)]
    plain = [row_scores(each, single.labels) for each in log_p]
    tempered = [row_scores(each, single.labels)[0] for each in own]
    right = [sample.right.astype(np.float64) for sample in (single, averaged)]

    def difference(pair: Sequence[Floats]) -> Difference:
        return mean_difference(pair[1], pair[0], single.groups)

    return OrderEffect(
        rows=len(rows),
        moved=float(np.mean([max(row.spread) for row in rows])),
        flips=int((single.logits.argmax(axis=1) != averaged.logits.argmax(axis=1)).sum()),
        single=scores_of(log_p[0], single.labels),
        averaged=scores_of(log_p[1], single.labels),
        single_accuracy=float(right[0].mean()),
        averaged_accuracy=float(right[1].mean()),
        accuracy=difference(right),
        brier=difference([each[1] for each in plain]),
        nll=difference([each[0] for each in plain]),
        nll_at_own_temperature=difference(tempered),
        single_cost=_cost([row.single_cost for row in rows]),
        averaged_cost=_cost([row.averaged_cost for row in rows]),
    )


def _sample(rows: Sequence[Asked], probabilities: Sequence[Sequence[float]]) -> Sample:
    """Logarithms of probabilities are logits: the softmax gives the probabilities back."""
    return Sample.of(
        [[float(np.log(max(p, _SMALLEST))) for p in each] for each in probabilities],
        [row.label for row in rows],
        [row.question_type for row in rows],
        [row.group for row in rows],
    )


def _cost(found: Sequence[tuple[int, float] | None]) -> Cost | None:
    known = [each for each in found if each is not None]
    if not known:
        return None
    tokens, milliseconds = zip(*known, strict=True)
    return Cost(len(known), float(np.mean(tokens)), float(np.mean(milliseconds)))
