"""Asks a target the labelled decisions, as plain decisions one by one, and times each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

from ops.bench.run_file import Answer, Row, Throughput, check_probabilities
from ops.client import DecisionError, UnreachableError
from ops.labelled import Labelled
from ops.output import progress

# One plain decision D to the wire's R. Raises DecisionError.
Decide = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_ERROR_MAX = 500


@dataclass(frozen=True)
class Asked:
    """What came of all rows."""

    rows: tuple[Row, ...]
    # Every different model, prompt version and probability status.
    answered_by: tuple[Mapping[str, Any], ...]
    throughput: Throughput


def ask(labelled: Sequence[Labelled], decide: Decide, *, concurrency: int) -> Asked:
    """Ask every row, `concurrency` at a time; a row that is not answered, or not rightly, says why.

    As plain decisions (`{"decision": ...}`), not as System One requests of the same meaning: their answers also tell
    logits, option mass and tokens, and it is what the published figures were measured with.

    Raises the error of a target that cannot be reached at all: the first rows would only say so one after another.
    """
    reached = Event()
    unreachable: list[UnreachableError] = []
    answered_by: dict[str, Mapping[str, Any]] = {}

    def one(row: Labelled) -> Row:
        if unreachable:
            raise unreachable[0]
        started = time.perf_counter()
        answer, error = None, None
        try:
            result = decide(row.decision)
            seconds = time.perf_counter() - started
            reached.set()
            answer, by = _read(result, row)
            answered_by.setdefault(json.dumps(by, sort_keys=True), by)
        except UnreachableError as raised:
            if not reached.is_set():
                unreachable.append(raised)
                raise
            seconds, error = time.perf_counter() - started, str(raised)
        except DecisionError as raised:
            seconds, error = time.perf_counter() - started, str(raised)
            reached.set()
        except ValueError as wrong:
            error = str(wrong)
        return Row(
            id=row.id,
            family=row.family,
            group=row.group,
            question_type=row.question_type,
            options=_options(row),
            expected=_options(row)[row.label],
            client_seconds=seconds,
            answer=answer,
            error=None if error is None else error[:_ERROR_MAX],
        )

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool, progress() as bar:
        rows = tuple(bar.track(pool.map(one, labelled), total=len(labelled), description="asking"))
    wall = time.perf_counter() - started
    answered = sum(row.answer is not None for row in rows)
    return Asked(rows, tuple(answered_by.values()), Throughput(answered, round(wall, 3), concurrency))


def _options(row: Labelled) -> tuple[str, ...]:
    return tuple(option["id"] for option in row.decision["options"])


def _read(result: Mapping[str, Any], row: Labelled) -> tuple[Answer, Mapping[str, Any]]:
    """The answer, and by what it was given. Raises ValueError where the result is not right in itself."""
    try:
        by = {name: result[name] for name in ("model", "prompt_version", "probability_status")}
        answer = Answer(
            probabilities=dict(zip(result["option_ids"], map(float, result["probabilities"]), strict=True)),
            logits=dict(zip(result["option_ids"], map(float, result["option_logits"]), strict=True)),
            option_mass=float(result["allowed_token_mass"]),
            input_tokens=int(result["input_tokens"]),
            cached_tokens=int(result["cached_tokens"]),
            prompt_sha256=str(result["prompt_sha256"]),
            model_seconds=float(result["forward_seconds"]),
            server_seconds=float(result["total_seconds"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the answer is none of a decision endpoint: {error}") from error
    check_probabilities(answer.probabilities, _options(row))
    return answer, by
