"""What a run is worth and how two runs differ, against values computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bench.compare import compare, mcnemar
from ops.bench.metrics import (
    Covered,
    accuracy,
    bins,
    chosen,
    confusions,
    covered,
    effective_rows,
    latency,
    metrics,
    mistakes,
    wilson,
)
from ops.bench.run_file import Answer, Dataset, Row, Run, Target, Throughput
from ops.errors import UsageError


def answer(probabilities: dict[str, float], **changed: Any) -> Answer:
    """An answer with these probabilities."""
    kept: dict[str, Any] = {
        "logits": dict.fromkeys(probabilities, 0.0),
        "option_mass": 0.5,
        "input_tokens": 100,
        "cached_tokens": 40,
        "prompt_sha256": "0",
        "model_seconds": 0.1,
        "server_seconds": 0.15,
    }
    return Answer(probabilities=probabilities, **{**kept, **changed})


def row(id_: str, expected: str, probabilities: dict[str, float] | None, **changed: Any) -> Row:
    """A row that got these probabilities, or no answer."""
    described: dict[str, Any] = {
        "family": "a",
        "group": id_,
        "question_type": "choice",
        "options": tuple(probabilities or {"x": 0, "y": 0}),
        "client_seconds": 0.2,
        "answer": None if probabilities is None else answer(probabilities),
        "error": "busy" if probabilities is None else None,
    }
    return Row(id=id_, expected=expected, **{**described, **changed})


def run(*rows: Row, name: str = "here", sha256: str = "1" * 64) -> Run:
    """A run of these rows."""
    return Run(
        configuration=name,
        date="2026-01-01T00:00:00+00:00",
        commit=None,
        dataset=Dataset("rows.jsonl", sha256, len(rows)),
        target=Target("adapter", image=None),
        answered_by=(),
        throughput=Throughput(len(rows), 1.0, 1),
        rows=rows,
    )


# Right at 0.8, wrong at 0.6, no answer, and a score question of three levels that expects the highest.
FOUR = (
    row("1", "x", {"x": 0.8, "y": 0.2}),
    row("2", "x", {"x": 0.4, "y": 0.6}, client_seconds=0.4),
    row("3", "x", None, client_seconds=9.0),
    row("4", "2", {"0": 0.1, "1": 0.2, "2": 0.7}, family="b", question_type="score"),
)


def test_scores_by_hand() -> None:
    found = metrics(FOUR)
    assert (found.valid, found.accuracy.right, found.accuracy.rows, found.accuracy.share) == (3, 2, 4, 0.5)
    assert {name: (each.right, each.rows) for name, each in found.families.items()} == {"a": (1, 3), "b": (1, 1)}
    # Squares over all options: 0.04 + 0.04; 0.36 + 0.36; 0.01 + 0.04 + 0.09.
    assert found.brier == pytest.approx((0.08 + 0.72 + 0.14) / 3)
    # Three bins of one row each: |1 - 0.8|, |0 - 0.6|, |1 - 0.7|.
    assert found.ece == pytest.approx((0.2 + 0.6 + 0.3) / 3)
    # Expected level 0.2 + 1.4 = 1.6 instead of 2.
    assert found.ordinal_error == pytest.approx(0.4)
    assert found.ordinal_rows == 1
    assert (found.evaluated_tokens, found.reused_tokens) == (180, 120)
    # The row without answer waited 9 s, and is not what answers take.
    assert found.client is not None
    assert found.client.p50 == pytest.approx(0.2)


@given(st.lists(st.tuples(st.integers(2, 10), st.integers(0, 9), st.sampled_from("abc")), min_size=1, max_size=30))
def test_a_run_that_is_right_and_sure_of_it_has_no_error(drawn: list[tuple[int, int, str]]) -> None:
    rows = []
    for number, (levels, level, group) in enumerate(drawn):
        expected = str(level % levels)
        probabilities = {str(each): float(str(each) == expected) for each in range(levels)}
        rows.append(row(str(number), expected, probabilities, group=group, question_type="score"))
    found = metrics(rows)
    assert (found.accuracy.share, found.accuracy.high, found.brier, found.ece, found.ordinal_error) == (1, 1, 0, 0, 0)
    assert found.accuracy.low < 1
    assert all((each.coverage, each.accuracy) == (1, 1) for each in found.coverage)
    assert mistakes(rows) == ()
    assert compare(run(*rows), run(*rows)).accuracy.value == 0


def test_nothing_answered_is_no_score_and_no_error() -> None:
    found = metrics([FOUR[2]])
    assert (found.valid, found.accuracy.share) == (0, 0)
    assert (found.brier, found.ece, found.ordinal_error, found.client, found.option_mass) == (None,) * 5
    assert found.coverage[0] == Covered(0.0, 0, 0.0, None)
    (confusion,) = confusions([FOUR[2]])
    assert confusion.counts == ((0, 0), (0, 0))


def test_of_equally_likely_options_the_first_in_the_alphabet_is_chosen() -> None:
    assert chosen(answer({"y": 0.4, "x": 0.4, "a": 0.2})) == "x"


def test_wilson_as_published() -> None:
    # 81 of 263: the example of Newcombe (Statistics in Medicine 17, 1998), method 3.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1.0, 29)[1] == 1.0


def test_rows_of_a_group_that_fall_together_count_once() -> None:
    pairs = ["1", "1", "2", "2", "3", "3", "4", "4"]
    together = [True, True, True, True, False, False, False, False]
    # Four groups, each wholly right or wrong: variance 4/3 * 4 * 1 / 64 = 1/12, and p (1 - p) over it is 3, below 4.
    assert effective_rows(together, pairs) == 4
    # Each group half right: the share varies not at all between groups, and no row counts twice.
    assert effective_rows([True, False] * 4, pairs) == 8
    assert effective_rows([True] * 8, pairs) == 4
    found = accuracy([row(str(n), "x", {"x": 0.9, "y": 0.1}, group=pairs[n]) for n in range(8)])
    assert (found.low, found.high) == pytest.approx(wilson(1.0, 4))


def test_the_resampled_interval_draws_groups() -> None:
    """One group of two rows that are right and one of two that are wrong: each resample is all, half or nothing."""
    rows = [row(str(n), "x", {"x": 1 - n // 2, "y": float(n // 2)}, group=str(n // 2)) for n in range(4)]
    assert metrics(rows).resampled == (0.0, 1.0)
    # One group leaves nothing to draw from.
    assert metrics([row("1", "x", {"x": 0.9, "y": 0.1}), row("2", "y", None, group="1")]).resampled == (0.5, 0.5)


def test_bins_hold_their_upper_edge() -> None:
    rows = [row(str(p), "x", {"x": p, "y": 1 - p}) for p in (0.6, 0.61, 0.7, 1.0)]
    assert [(each.low, each.high, each.rows) for each in bins(rows)] == [(0.5, 0.6, 1), (0.6, 0.7, 2), (0.9, 1.0, 1)]


def test_coverage_counts_all_rows_and_judges_the_answered() -> None:
    assert covered(FOUR, 0.7) == Covered(0.7, 2, 0.5, 1.0)
    assert covered(FOUR, 0.5) == Covered(0.5, 3, 0.75, 2 / 3)


def test_percentiles_are_interpolated() -> None:
    found = latency([0.0, 1.0, 2.0, 3.0])
    assert found is not None
    assert (found.p50, found.p95, found.p99) == pytest.approx((1.5, 2.85, 2.97))


def test_confusion_has_expected_options_down_and_chosen_ones_across() -> None:
    rows = [*FOUR[:3], row("5", "y", {"x": 0.9, "y": 0.1}), row("6", "y", {"x": 0.9, "y": 0.1})]
    (confusion,) = confusions(rows)
    assert (confusion.options, confusion.counts) == (("x", "y"), ((1, 1), (2, 0)))
    other = row("7", "u", {"u": 0.9, "v": 0.1})
    assert confusions([*rows, other]) == ()


def test_the_surest_mistake_comes_first() -> None:
    rows = [row(str(p), "x", {"x": 1 - p, "y": p}) for p in (0.6, 0.9, 0.3)]
    assert [(each.id, each.probability) for each in mistakes(rows)] == [("0.9", 0.9), ("0.6", 0.6)]


def test_mcnemar_is_exact() -> None:
    # 2 * (1 + 6) / 2^6; nothing to tell where the runs never differ; far beyond a float's range of powers.
    assert mcnemar(1, 5) == 14 / 64
    assert mcnemar(0, 0) == 1
    assert mcnemar(3, 3) == 1
    assert 0 < mcnemar(900, 1100) < 1e-4


def test_runs_are_compared_over_the_rows_that_both_asked() -> None:
    here = run(*FOUR, row("5", "x", {"x": 0.3, "y": 0.7}))
    there = run(
        row("5", "x", None),
        row("4", "2", {"0": 0.8, "1": 0.1, "2": 0.1}, family="b", question_type="score"),
        row("2", "x", None, client_seconds=0.1, answer=answer({"x": 0.4, "y": 0.6}, cached_tokens=90), error=None),
        row("3", "x", {"x": 0.9, "y": 0.1}),
    )
    found = compare(here, there)
    assert (found.rows, found.only_right_here, found.only_right_there) == (4, 1, 1)
    assert (found.answered, found.other_choice) == (2, 1)
    assert found.accuracy.value == 0
    # Row 4: 0.14 instead of 0.64 + 0.01 + 0.81; row 2: the same.
    assert found.brier is not None
    assert found.brier.value == pytest.approx((0.14 - 1.46) / 2)
    assert found.client_seconds is not None
    assert found.client_seconds.value == pytest.approx((0.4 - 0.1) / 2)
    # 60 instead of 10 in row 2, which the other run had seen before.
    assert found.evaluated_tokens is not None
    assert found.evaluated_tokens.value == 25


def test_who_alone_is_right_is_counted_for_each_run() -> None:
    right, wrong = {"x": 0.9, "y": 0.1}, {"x": 0.1, "y": 0.9}
    here = run(row("1", "x", right), row("2", "x", right), row("3", "x", wrong), row("4", "x", right))
    there = run(row("1", "x", wrong), row("2", "x", wrong), row("3", "x", right), row("4", "x", right))
    found = compare(here, there)
    assert (found.only_right_here, found.only_right_there, found.accuracy.value) == (2, 1, 0.25)
    assert found.mcnemar_p == 1


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"rows\.jsonl with SHA-256 111111111111, the other of rows\.jsonl with SHA-256 2"
    ):
        compare(run(*FOUR), run(*FOUR, sha256="2" * 64))
    with pytest.raises(UsageError, match="no row in common"):
        compare(run(FOUR[0]), run(FOUR[1]))
