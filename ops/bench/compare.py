"""Two runs over the same rows: paired differences, and whether they could be chance. No files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ops.bench.metrics import brier, chosen, is_right
from ops.bench.run_file import Answer, Dataset, Row, Run
from ops.calibrate.fit import Difference, mean_difference
from ops.errors import UsageError

_Pair = tuple[Row, Answer, Row, Answer]


@dataclass(frozen=True)
class Comparison:
    """A run minus another one, over the rows that both asked; differences of nothing are None."""

    rows: int
    only_right_here: int  # rows that this run has right and the other has not
    only_right_there: int
    accuracy: Difference
    # Probability of a difference at least as large where both are equally often right, rows being independent.
    mcnemar_p: float
    answered: int  # rows that both have an answer to: what follows is over these
    other_choice: int
    other_prompt: int  # whose rendered prompts differ, as another template makes them
    brier: Difference | None
    client_seconds: Difference | None
    model_seconds: Difference | None
    # Where fewer were evaluated, because more had been before, less time is no speed.
    evaluated_tokens: Difference | None


def compare(run: Run, other: Run) -> Comparison:
    """Compare `run` with `other`. Raises UsageError where they are of different data sets or have no row in common."""
    check_same_dataset(run.dataset, other.dataset)
    others = {row.id: row for row in other.rows}
    pairs = [(row, others[row.id]) for row in run.rows if row.id in others]
    if not pairs:
        raise UsageError("the runs cannot be compared: they have no row in common")
    here, there = ([float(is_right(row)) for row in side] for side in zip(*pairs, strict=True))
    only_here = sum(a > b for a, b in zip(here, there, strict=True))
    only_there = sum(a < b for a, b in zip(here, there, strict=True))
    both = [
        (row, row.answer, that, that.answer)
        for row, that in pairs
        if row.answer is not None and that.answer is not None
    ]
    return Comparison(
        rows=len(pairs),
        only_right_here=only_here,
        only_right_there=only_there,
        accuracy=_difference(here, there, [row.group for row, _ in pairs]),
        mcnemar_p=mcnemar(only_here, only_there),
        answered=len(both),
        other_choice=sum(chosen(answer) != chosen(other_answer) for _, answer, _, other_answer in both),
        other_prompt=sum(answer.prompt_sha256 != other_answer.prompt_sha256 for _, answer, _, other_answer in both),
        brier=_of_answered(both, brier),
        client_seconds=_of_answered(both, lambda row, _: row.client_seconds),
        model_seconds=_of_answered(both, lambda _, answer: answer.model_seconds),
        evaluated_tokens=_of_answered(both, lambda _, answer: answer.input_tokens - answer.cached_tokens),
    )


def check_same_dataset(here: Dataset, there: Dataset) -> None:
    """Raises UsageError where they are not the same file."""
    if here.sha256 != there.sha256:
        raise UsageError(f"the runs cannot be compared: one is of {_named(here)}, the other of {_named(there)}")


def mcnemar(only_here: int, only_there: int) -> float:
    """The two-sided p of McNemar's test, exact: a coin that falls so unevenly on the rows on which the runs differ.

    McNemar (Psychometrika 12, 1947), by the binomial distribution instead of its approximation.
    """
    count = only_here + only_there
    tail = sum(math.comb(count, k) for k in range(min(only_here, only_there) + 1))
    # Whole numbers until the end: 2 ** count exceeds a float's range.
    return 1.0 if 2 * tail >= 2**count else 2 * tail / 2**count


def _difference(here: Sequence[float], there: Sequence[float], groups: Sequence[str]) -> Difference:
    return mean_difference(np.array(here), np.array(there), groups)


def _of_answered(both: Sequence[_Pair], score: Callable[[Row, Answer], float]) -> Difference | None:
    if not both:
        return None
    here = [score(row, answer) for row, answer, _, _ in both]
    there = [score(row, answer) for _, _, row, answer in both]
    return _difference(here, there, [row.group for row, *_ in both])


def _named(dataset: Dataset) -> str:
    return f"{dataset.file} with SHA-256 {dataset.sha256[:12]}"
