"""What the fits need of a run's answers, and of the answers in several orders, which no run has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.ask import ask
from ops.bench.run_file import FORMAT, Row, read_run
from ops.calibrate.fit import ROWS, Sample
from ops.calibrate.order_effect import Asked
from ops.errors import FailedError, UsageError
from ops.labelled import Labelled, read_labelled
from ops.output import progress

# One plain decision D to the wire's R. Raises DecisionError.
Decide = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Answers:
    """The logits of labelled decisions, of which model and prompt they are, and of which file."""

    sample: Sample
    fitted_for: Mapping[str, str]
    source: Mapping[str, str]


def is_run(path: Path) -> bool:
    """Whether the file is a run of `decide bench`, not labelled decisions: one document that says so."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def answers_of_run(path: Path) -> Answers:
    """The answers of a run file. Raises UsageError and FailedError as `answers_of` does."""
    run = read_run(path)
    return answers_of(run.rows, run.answered_by, {"file": run.dataset.file, "sha256": run.dataset.sha256})


def ask_labelled(path: Path, decide: Decide, *, concurrency: int) -> Answers:
    """Ask every row of a file, several at a time.

    Raises UsageError for a wrong file, FailedError where it has too few rows, before it asks, or where some are not
    answered, and DecisionError where nobody can be reached.
    """
    file = read_labelled(path)
    if len(file.rows) < ROWS:
        raise FailedError(f"too little to fit a temperature: {len(file.rows)} rows, at least {ROWS} are needed")
    asked = ask(file.rows, decide, concurrency=concurrency)
    return answers_of(asked.rows, asked.answered_by, {"file": file.name, "sha256": file.sha256})


def answers_of(rows: Sequence[Row], answered_by: Sequence[Mapping[str, Any]], source: Mapping[str, str]) -> Answers:
    """From a run's rows.

    Raises FailedError where one was not answered, which the fit would miss, and UsageError where the answers are of
    several models or prompts.
    """
    if unanswered := [row for row in rows if row.error is not None]:
        raise FailedError(
            f"{len(unanswered)} of {len(rows)} rows were not answered, the first, {unanswered[0].id!r}, because: "
            f"{unanswered[0].error}"
        )
    fitted_for = {(str(by["model"]["gguf_sha256"]), str(by["prompt_version"])) for by in answered_by}
    if len(fitted_for) != 1:
        found = "; ".join(f"{prompt} of the model with sha256 {sha256}" for sha256, prompt in sorted(fitted_for))
        raise UsageError(f"the answers are of several models or prompts: {found or 'none is said'}")
    ((sha256, prompt_version),) = fitted_for
    answered = [(row, row.answer) for row in rows if row.answer is not None]
    return Answers(
        Sample.of(
            # The model's own, whatever the answer was calibrated by.
            [[answer.logits[option] for option in row.options] for row, answer in answered],
            [row.options.index(row.expected) for row, _ in answered],
            [row.question_type for row, _ in answered],
            [row.group for row, _ in answered],
        ),
        {"gguf_sha256": sha256, "prompt_version": prompt_version},
        source,
    )


def ask_both_ways(rows: Sequence[Labelled], decide: Decide, *, orders: int) -> list[Asked]:
    """Ask every row in its own order and averaged over `orders`, one request after the other. Raises DecisionError.

    Who asks second finds the state evaluated already, so which way comes first alternates from one new state to the
    next, and only the first of them counts for the cost.
    """
    asked: list[Asked] = []
    seen: set[str] = set()
    with progress() as bar:
        for row in bar.track(rows, description="asking"):
            state = json.dumps(row.decision["state"], sort_keys=True)
            is_new = state not in seen
            single_first = len(seen) % 2 == 0
            seen.add(state)
            single, averaged = _in_turn(row.decision, decide, orders, single_first=single_first)
            asked.append(
                Asked(
                    label=row.label,
                    question_type=row.question_type,
                    group=row.group,
                    single=single["probabilities"],
                    averaged=averaged["probabilities"],
                    spread=averaged["permutations"]["spread"],
                    single_cost=_cost(single) if is_new and single_first else None,
                    averaged_cost=_cost(averaged) if is_new and not single_first else None,
                )
            )
    return asked


def _in_turn(
    decision: Mapping[str, Any], decide: Decide, orders: int, *, single_first: bool
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if single_first:
        single = decide(decision)
        return single, decide({**decision, "permutations": orders})
    averaged = decide({**decision, "permutations": orders})
    return decide(decision), averaged


def _cost(result: Mapping[str, Any]) -> tuple[int, float]:
    return result["input_tokens"] - result["cached_tokens"], result["total_seconds"] * 1000
