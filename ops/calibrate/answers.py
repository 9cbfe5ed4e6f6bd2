"""Asks a target the labelled decisions, and keeps what the fits need of its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ops.calibrate.fit import Sample
from ops.calibrate.labelled import Labelled
from ops.calibrate.order_effect import Asked
from ops.errors import FailedError, OpsError, UsageError
from ops.output import progress

# One plain decision D to the wire's R. Raises OpsError.
Decide = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Answers:
    """The logits of labelled decisions, and of which model and prompt they are."""

    sample: Sample
    fitted_for: Mapping[str, str]


def answers_of(rows: Sequence[Labelled], results: Sequence[Mapping[str, Any]]) -> Answers:
    """From one result (the wire's `R`) for each row.

    Raises UsageError where they are of several models or prompts, or averaged over orders.
    """
    fitted_for = {(str(result["model"]["gguf_sha256"]), str(result["prompt_version"])) for result in results}
    if len(fitted_for) != 1:
        found = "; ".join(f"{prompt} of the model with sha256 {sha256}" for sha256, prompt in sorted(fitted_for))
        raise UsageError(f"the answers are of several models or prompts: {found}")
    if any("permutations" in result for result in results):
        raise UsageError(
            "the answers are averages over orders of the options; a temperature is fitted on single orders"
        )
    ((sha256, prompt_version),) = fitted_for
    return Answers(
        Sample.of(
            # The model's own, whatever the answer was calibrated by.
            [result["option_logits"] for result in results],
            [_place(row, result) for row, result in zip(rows, results, strict=True)],
            [row.question_type for row in rows],
            [row.group for row in rows],
        ),
        {"gguf_sha256": sha256, "prompt_version": prompt_version},
    )


def ask(rows: Sequence[Labelled], decide: Decide, *, concurrency: int) -> Answers:
    """Ask every row, several at a time.

    Raises the first error where none is answered, and FailedError where some are not: the fit would miss them.
    """
    failed: list[OpsError] = []

    def one(row: Labelled) -> Mapping[str, Any] | None:
        try:
            return decide(row.decision)
        except OpsError as error:
            failed.append(error)
            return None

    with ThreadPoolExecutor(concurrency) as pool, progress() as bar:
        found = list(bar.track(pool.map(one, rows), total=len(rows), description="asking"))
    if len(failed) == len(rows):
        raise failed[0]
    if failed:
        raise FailedError(f"{len(failed)} of {len(rows)} rows were not answered, the first because {failed[0]}")
    return answers_of(rows, [result for result in found if result is not None])


def ask_both_ways(rows: Sequence[Labelled], decide: Decide, *, orders: int) -> list[Asked]:
    """Ask every row in its own order and averaged over `orders`, one request after the other. Raises OpsError.

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
                    label=_place(row, single),
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


def _place(row: Labelled, result: Mapping[str, Any]) -> int:
    """The label's index in the answer."""
    expected = row.decision["options"][row.label]["id"]
    return list(result["option_ids"]).index(expected)


def _cost(result: Mapping[str, Any]) -> tuple[int, float]:
    return result["input_tokens"] - result["cached_tokens"], result["total_seconds"] * 1000
