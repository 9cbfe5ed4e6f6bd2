"""What a run is worth: accuracy with intervals, how honest its probabilities are, and how fast it was. No files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ops.bench.run_file import Answer, Row
from ops.calibrate.fit import BINS, mean_difference

# The shares of the answers that are given at these probabilities of the chosen option at least.
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
WORST = 10
_Z = 1.959963984540054  # of a normal distribution, 95 % lie within


@dataclass(frozen=True)
class Accuracy:
    """Rows whose chosen option is the expected one, of all that were asked; a row without answer is not right."""

    rows: int
    right: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Latency:
    """Percentiles in seconds, interpolated linearly between the two nearest rows."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Covered:
    """What is left where only answers of at least this probability are taken."""

    threshold: float
    answered: int
    coverage: float  # of all rows
    accuracy: float | None  # among those answered; None where there is none


@dataclass(frozen=True)
class Bin:
    """The answers whose chosen option has a probability in (low, high]."""

    low: float
    high: float
    rows: int
    confidence: float  # mean probability of the chosen option
    accuracy: float


@dataclass(frozen=True)
class Confusion:
    """How often which option was chosen where which was expected; rows are the expected ones."""

    family: str
    options: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Mistake:
    """A row in which another option than the expected one was chosen."""

    id: str
    family: str
    expected: str
    chosen: str
    probability: float  # of the chosen option
    of_expected: float


@dataclass(frozen=True)
class Metrics:
    """A run in numbers; what is None cannot be said, because no row was answered or asked so.

    `brier`: mean over answered rows of the sum over options of (p - [is expected])^2, from 0 to 2 (Brier 1950).
    `ece`: expected calibration error, the mean over answered rows of |accuracy - mean confidence| of the row's bin, in
    `BINS` equal bins over the probability of the chosen option (Guo et al. 2017). `ordinal_error`: mean over answered
    score questions of |sum of level x probability - expected level|.
    """

    valid: int
    accuracy: Accuracy
    # 95 % of resamples of the groups have their accuracy in here (bootstrap): an interval that assumes no distribution.
    resampled: tuple[float, float]
    families: dict[str, Accuracy]
    brier: float | None
    ece: float | None
    ordinal_error: float | None
    ordinal_rows: int
    option_mass: float | None  # median
    client: Latency | None
    model: Latency | None
    evaluated_tokens: int
    reused_tokens: int
    coverage: tuple[Covered, ...]


def metrics(rows: Sequence[Row]) -> Metrics:
    """The numbers of one row at least."""
    given = answered(rows)
    ordinal = [ordinal_error(row, answer) for row, answer in given if row.question_type == "score"]
    return Metrics(
        valid=len(given),
        accuracy=accuracy(rows),
        resampled=resampled_accuracy(rows),
        families={
            family: accuracy([row for row in rows if row.family == family])
            for family in sorted({row.family for row in rows})
        },
        brier=_mean([brier(row, answer) for row, answer in given]),
        ece=ece(rows),
        ordinal_error=_mean(ordinal),
        ordinal_rows=len(ordinal),
        option_mass=float(np.median([answer.option_mass for _, answer in given])) if given else None,
        client=latency([row.client_seconds for row, _ in given]),
        model=latency([answer.model_seconds for _, answer in given]),
        evaluated_tokens=sum(answer.input_tokens - answer.cached_tokens for _, answer in given),
        reused_tokens=sum(answer.cached_tokens for _, answer in given),
        coverage=tuple(covered(rows, threshold) for threshold in THRESHOLDS),
    )


def answered(rows: Sequence[Row]) -> list[tuple[Row, Answer]]:
    """The rows that have an answer."""
    return [(row, row.answer) for row in rows if row.answer is not None]


def chosen(answer: Answer) -> str:
    """The likeliest option; of several equally likely ones the first in the alphabet, as JevBench scores."""
    return min(answer.probabilities, key=lambda option: (-answer.probabilities[option], option))


def confidence(answer: Answer) -> float:
    """The probability of the chosen option."""
    return max(answer.probabilities.values())


def is_right(row: Row) -> bool:
    """Whether the expected option was chosen."""
    return row.answer is not None and chosen(row.answer) == row.expected


def brier(row: Row, answer: Answer) -> float:
    """The row's part of the Brier score, from 0 to 2."""
    return sum((p - (option == row.expected)) ** 2 for option, p in answer.probabilities.items())


def ordinal_error(row: Row, answer: Answer) -> float:
    """How many levels the expected value of the answer is off; options are the levels' numbers."""
    return abs(sum(int(level) * p for level, p in answer.probabilities.items()) - int(row.expected))


def accuracy(rows: Sequence[Row]) -> Accuracy:
    """With the 95 % interval of Wilson (1927) at the effective number of rows."""
    right = [is_right(row) for row in rows]
    share = sum(right) / len(rows)
    return Accuracy(len(rows), sum(right), share, *wilson(share, effective_rows(right, [row.group for row in rows])))


def resampled_accuracy(rows: Sequence[Row]) -> tuple[float, float]:
    """The bootstrap interval, 95 %, of the accuracy: whole groups are drawn, since their rows fall together."""
    right = np.array([float(is_right(row)) for row in rows])
    found = mean_difference(right, np.zeros(len(rows)), [row.group for row in rows])
    return found.low, found.high


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's score interval, 95 %, of a share of `count` independent rows (JASA 22, 1927)."""
    middle = share + _Z**2 / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, (middle - spread) / (1 + _Z**2 / count)), min(1.0, (middle + spread) / (1 + _Z**2 / count))


def effective_rows(right: Sequence[bool], groups: Sequence[str]) -> float:
    """How many independent rows tell as much as these, between the number of groups and that of rows.

    Rows of a group, such as one scenario in other words, tend to be right or wrong together. The number is p (1 - p)
    over the variance of the share with groups as clusters, as Korn and Graubard (1998) take it for surveys. Where all
    rows are right or all wrong the variance says nothing, and only the groups count.
    """
    rows, share = len(right), sum(right) / len(right)
    deviation: dict[str, float] = {}
    for is_one, group in zip(right, groups, strict=True):
        deviation[group] = deviation.get(group, 0.0) + is_one - share
    count = len(deviation)
    if count == 1 or share in (0, 1):
        return count
    variance = count / (count - 1) * sum(each**2 for each in deviation.values()) / rows**2
    return rows if variance == 0 else min(rows, max(count, share * (1 - share) / variance))


def latency(seconds: Sequence[float]) -> Latency | None:
    """The percentiles; None of nothing."""
    return Latency(*map(float, np.percentile(seconds, (50, 95, 99)))) if seconds else None


def bins(rows: Sequence[Row]) -> tuple[Bin, ...]:
    """The answered rows by the probability of the chosen option, without empty bins; a bin holds its upper edge."""
    held: dict[int, list[tuple[float, bool]]] = {}
    for row, answer in answered(rows):
        sure = confidence(answer)
        held.setdefault(min(max(math.ceil(sure * BINS) - 1, 0), BINS - 1), []).append((sure, is_right(row)))
    return tuple(
        Bin(
            low=number / BINS,
            high=(number + 1) / BINS,
            rows=len(held[number]),
            confidence=sum(sure for sure, _ in held[number]) / len(held[number]),
            accuracy=sum(right for _, right in held[number]) / len(held[number]),
        )
        for number in sorted(held)
    )


def ece(rows: Sequence[Row]) -> float | None:
    """The expected calibration error; None where no row was answered."""
    found = bins(rows)
    count = sum(each.rows for each in found)
    return sum(each.rows * abs(each.accuracy - each.confidence) for each in found) / count if count else None


def covered(rows: Sequence[Row], threshold: float) -> Covered:
    """What a caller gets who leaves answers below the threshold to somebody else."""
    taken = [row for row, answer in answered(rows) if confidence(answer) >= threshold]
    return Covered(threshold, len(taken), len(taken) / len(rows), _mean([float(is_right(row)) for row in taken]))


def confusions(rows: Sequence[Row]) -> tuple[Confusion, ...]:
    """One for each family whose rows have all the same options, as far as they are answered."""
    found = []
    for family in sorted({row.family for row in rows}):
        of_family = [row for row in rows if row.family == family]
        if len({frozenset(row.options) for row in of_family}) == 1:
            options = of_family[0].options
            pairs = [(row.expected, chosen(answer)) for row, answer in answered(of_family)]
            counts = tuple(tuple(pairs.count((expected, other)) for other in options) for expected in options)
            found.append(Confusion(family, options, counts))
    return tuple(found)


def mistakes(rows: Sequence[Row], limit: int = WORST) -> tuple[Mistake, ...]:
    """The wrong answers that were given with the most confidence, the surest first."""
    wrong = [
        Mistake(
            id=row.id,
            family=row.family,
            expected=row.expected,
            chosen=chosen(answer),
            probability=confidence(answer),
            of_expected=answer.probabilities[row.expected],
        )
        for row, answer in answered(rows)
        if not is_right(row)
    ]
    return tuple(sorted(wrong, key=lambda mistake: (-mistake.probability, mistake.id))[:limit])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
