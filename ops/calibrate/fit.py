"""Temperature scaling: the fit, and what it is worth on decisions that it has not seen. Arrays only, no files.

Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (ICML 2017): probabilities become
softmax(logits / T), with the one T that makes the labels likeliest. It moves no argmax, so accuracy stays what it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stacks.calibrations import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FOLDS = 5
# Of the calibration error, in every command: equal widths over the probability of the likeliest option.
BINS = 10
# The relative standard error of T from n decisions between two options is 1/sqrt(0.44 n) at best: with 100 rows T is
# known to within 30 %. And it rests on the rarer of right and wrong answers, of which one parameter wants 20.
ROWS = 100
RIGHT_AND_WRONG = 20
RESAMPLES = 2000
OUT_OF_BOUNDS = (
    f"no temperature from {LOWEST_TEMPERATURE:g} to {HIGHEST_TEMPERATURE:g} is the likeliest: "
    "the logits do not tell right from wrong"
)
_Z = 1.96  # of a normal distribution, 95 % lie within


@dataclass(frozen=True)
class Sample:
    """Labelled decisions and the logits that they got."""

    logits: Floats  # (rows, options of the longest), -inf where a row has fewer
    labels: Integers  # (rows,), the right option's index
    types: tuple[str, ...]
    groups: tuple[str, ...]  # rows of one group may not be independent: they are never split

    @staticmethod
    def of(
        logits: Sequence[Sequence[float]], labels: Sequence[int], types: Sequence[str], groups: Sequence[str]
    ) -> Sample:
        """From one entry for each row."""
        padded = np.full((len(logits), max(map(len, logits), default=0)), -np.inf)
        for row, values in enumerate(logits):
            padded[row, : len(values)] = values
        return Sample(padded, np.array(labels, dtype=np.int64), tuple(types), tuple(groups))

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, chosen: NDArray[np.bool_]) -> Sample:
        """The chosen rows, shape (rows,)."""
        rows = np.flatnonzero(chosen)
        return Sample(
            self.logits[rows],
            self.labels[rows],
            tuple(self.types[row] for row in rows),
            tuple(self.groups[row] for row in rows),
        )

    def of_type(self, question_type: str) -> NDArray[np.bool_]:
        """Which rows are, shape (rows,)."""
        return np.array([each == question_type for each in self.types], dtype=bool)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whose likeliest option is the label, shape (rows,)."""
        found: NDArray[np.bool_] = self.logits.argmax(axis=1) == self.labels
        return found

    def lacks(self) -> str | None:
        """What there is too little of for a temperature; None where there is enough."""
        right = int(self.right.sum())
        wrong = len(self) - right
        if len(self) < ROWS:
            return f"{len(self)} rows, at least {ROWS} are needed"
        if min(right, wrong) < RIGHT_AND_WRONG:
            return f"{right} right and {wrong} wrong answers, at least {RIGHT_AND_WRONG} of each are needed"
        if len(set(self.groups)) < FOLDS:
            return f"{len(set(self.groups))} groups, at least {FOLDS} are needed"
        return None


@dataclass(frozen=True)
class Temperature:
    """The likeliest one, and the interval that holds the true one 95 times in 100 (standard errors by groups)."""

    value: float
    low: float
    high: float
    at_bound: bool  # no temperature that is allowed is the likeliest


@dataclass(frozen=True)
class Scores:
    """What probabilities are worth against the labels; lower is better in each.

    `nll`: mean negative log likelihood in nats. `brier`: mean over rows of the sum over options of (p - [is label])^2,
    from 0 to 2. `ece`: expected calibration error in `BINS` equal bins.
    """

    nll: float
    brier: float
    ece: float


@dataclass(frozen=True)
class Difference:
    """After minus before, with the interval that 95 % of resamples of the groups fall into."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Effect:
    """What dividing by a temperature does to rows that it was not fitted on."""

    rows: int
    wrong: int
    before: Scores
    after: Scores
    nll: Difference
    ece: Difference

    @property
    def pays(self) -> bool:
        """Whether the log likelihood surely improves, and the calibration error does not get worse.

        The likelihood decides, because it is a proper score: nothing but better probabilities improves it.
        """
        return self.nll.high < 0 and self.ece.value <= 0


@dataclass(frozen=True)
class OfType:
    """One type of question: its own temperature, or why it takes the overall one."""

    temperature: Temperature | None
    lacks: str | None
    effect: Effect


@dataclass(frozen=True)
class Fit:
    """Temperatures from all rows, and their effect out of fold."""

    overall: Temperature
    by_type: Mapping[str, OfType]
    # As plain decisions are answered, which have no type: all rows with the overall temperature.
    plain: Effect
    # As typed questions are answered: each with its type's temperature.
    typed: Effect


def log_softmax(logits: Floats, temperature: Floats | float = 1.0) -> Floats:
    """Logarithms of softmax(logits / temperature), (rows, options); `temperature` is one, or one for each row."""
    divisor = np.broadcast_to(np.asarray(temperature, dtype=np.float64), (len(logits),))
    scaled = (logits - logits.max(axis=1, keepdims=True)) / divisor[:, None]
    result: Floats = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return result


def fit_temperature(sample: Sample) -> Temperature:
    """The temperature that minimises the negative log likelihood, which is convex in 1/T.

    By bisection on its derivative there, the mean over rows of E[logit] - logit of the label.
    """
    # Logits count from the row's largest; absent options weigh nothing, so any finite number stands for them.
    shifted = sample.logits - sample.logits.max(axis=1, keepdims=True)
    finite = np.where(np.isfinite(shifted), shifted, 0.0)
    of_label = finite[np.arange(len(sample)), sample.labels]

    def moments(inverse: float) -> tuple[Floats, Floats]:
        p = np.exp(log_softmax(sample.logits, 1 / inverse))
        mean = (p * finite).sum(axis=1)
        return mean - of_label, (p * finite**2).sum(axis=1) - mean**2

    low, high = np.log(1 / HIGHEST_TEMPERATURE), np.log(1 / LOWEST_TEMPERATURE)
    at_bound = moments(float(np.exp(low)))[0].mean() >= 0 or moments(float(np.exp(high)))[0].mean() <= 0
    for _ in range(60):  # halvings of log(1/T): far below a float's resolution
        middle = (low + high) / 2
        low, high = (low, middle) if moments(float(np.exp(middle)))[0].mean() > 0 else (middle, high)
    inverse = float(np.exp((low + high) / 2))
    slopes, curvatures = moments(inverse)
    by_group = _per_group(sample.groups, slopes[:, None])[:, 0]
    count = len(by_group)
    correction = count / (count - 1) if count > 1 else 1.0
    curvature = float(curvatures.sum())
    # The sandwich of M-estimation, with the rows of a group as one observation.
    error = float(np.sqrt(correction * (by_group**2).sum())) / curvature if curvature > 0 else np.inf
    with np.errstate(over="ignore"):
        spread = float(np.exp(_Z * error / inverse))
    return Temperature(1 / inverse, 1 / inverse / spread, spread / inverse, bool(at_bound))


def folds(groups: Sequence[str], count: int = FOLDS) -> Integers:
    """A fold from 0 to `count` - 1 for each row, (rows,): whole groups, about as many rows in each, always the same.

    The largest group comes first, equal ones in the order of their names' hash; each goes to the fold with the fewest
    rows.
    """
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group] = sizes.get(group, 0) + 1
    filled = [0] * count
    chosen: dict[str, int] = {}
    for group in sorted(sizes, key=lambda name: (-sizes[name], hashlib.sha256(name.encode()).digest())):
        chosen[group] = filled.index(min(filled))
        filled[chosen[group]] += sizes[group]
    return np.array([chosen[group] for group in groups], dtype=np.int64)


def out_of_fold(sample: Sample, own: frozenset[str] = frozenset()) -> Floats:
    """The temperature of each row, (rows,), fitted on the other folds' rows only.

    On those of its type where that is in `own`, else on all.
    """
    temperatures = np.ones(len(sample))
    fold_of = folds(sample.groups)
    for fold in range(FOLDS):
        training, held_out = sample.only(fold_of != fold), fold_of == fold
        if len(training) == 0 or not held_out.any():
            continue
        temperatures[held_out] = fit_temperature(training).value
        for question_type in own:
            of_type = training.only(training.of_type(question_type))
            if len(of_type):
                temperatures[held_out & sample.of_type(question_type)] = fit_temperature(of_type).value
    return temperatures


def row_scores(log_p: Floats, labels: Integers) -> tuple[Floats, Floats]:
    """Negative log likelihood and Brier score of each row, (rows,) both."""
    rows = np.arange(len(labels))
    p = np.exp(log_p)
    truth = np.zeros_like(p)
    truth[rows, labels] = 1
    return -log_p[rows, labels], ((p - truth) ** 2).sum(axis=1)


def gaps(log_p: Floats, labels: Integers) -> Floats:
    """Confidence minus correctness of each row in the column of its bin, (rows, BINS)."""
    confidence = np.exp(log_p.max(axis=1))
    # A bin holds its upper edge: 1 belongs to the last.
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    found = np.zeros((len(labels), BINS))
    found[np.arange(len(labels)), bins] = confidence - (log_p.argmax(axis=1) == labels)
    return found


def scores(log_p: Floats, labels: Integers) -> Scores:
    """The scores of log probabilities, (rows, options)."""
    nll, brier = row_scores(log_p, labels)
    ece = np.abs(gaps(log_p, labels).sum(axis=0)).sum() / len(labels)
    return Scores(float(nll.mean()), float(brier.mean()), float(ece))


def resampled_counts(groups: Sequence[str]) -> tuple[Floats, Floats]:
    """How often each group is drawn in each of `RESAMPLES` bootstrap samples, and the rows that each sample has then.

    Shapes (RESAMPLES, groups), with the groups in alphabetical order, and (RESAMPLES,). Always the same draws.
    """
    sizes = _per_group(groups, np.ones((len(groups), 1)))[:, 0]
    count = len(sizes)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)
    return drawn, drawn @ sizes


def mean_difference(after: Floats, before: Floats, groups: Sequence[str]) -> Difference:
    """The paired difference of two scores' means over the rows, (rows,) both."""
    drawn, rows = resampled_counts(groups)
    sums = drawn @ _per_group(groups, (after - before)[:, None])[:, 0]
    return _difference(float((after - before).mean()), sums / rows)


def effect(sample: Sample, temperature: Floats) -> Effect:
    """What a temperature for each row, (rows,), does to the sample."""
    before, after = log_softmax(sample.logits), log_softmax(sample.logits, temperature)
    nll = mean_difference(row_scores(after, sample.labels)[0], row_scores(before, sample.labels)[0], sample.groups)
    drawn, rows = resampled_counts(sample.groups)
    ece = [
        np.abs(drawn @ _per_group(sample.groups, gaps(each, sample.labels))).sum(axis=1) / rows
        for each in (before, after)
    ]
    told = scores(before, sample.labels), scores(after, sample.labels)
    return Effect(
        rows=len(sample),
        wrong=int((~sample.right).sum()),
        before=told[0],
        after=told[1],
        nll=nll,
        ece=_difference(told[1].ece - told[0].ece, ece[1] - ece[0]),
    )


def fit(sample: Sample) -> Fit:
    """Fit the overall temperature and one for each type that has enough rows, and measure them out of fold."""
    masks = {question_type: sample.of_type(question_type) for question_type in sorted(set(sample.types))}
    lacks = {question_type: sample.only(mask).lacks() for question_type, mask in masks.items()}
    temperatures: dict[str, Temperature] = {}
    for question_type in [each for each, reason in lacks.items() if reason is None]:
        likeliest = fit_temperature(sample.only(masks[question_type]))
        if likeliest.at_bound:
            lacks[question_type] = OUT_OF_BOUNDS
        else:
            temperatures[question_type] = likeliest
    as_typed = out_of_fold(sample, frozenset(temperatures))
    return Fit(
        overall=fit_temperature(sample),
        by_type={
            question_type: OfType(
                temperatures.get(question_type),
                lacks[question_type],
                effect(sample.only(mask), as_typed[mask]),
            )
            for question_type, mask in masks.items()
        },
        plain=effect(sample, out_of_fold(sample)),
        typed=effect(sample, as_typed),
    )


def _difference(value: float, resampled: Floats) -> Difference:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Difference(value, float(low), float(high))


def _per_group(groups: Sequence[str], values: Floats) -> Floats:
    """Sums over the rows of each group, (groups, columns), the groups in alphabetical order."""
    names, index = np.unique(np.array(groups, dtype=object).astype(str), return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, index, values)
    return sums
