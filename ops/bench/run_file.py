"""A run of labelled decisions as a file, from which reports are made again; it holds no word of the states."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.errors import UsageError

FORMAT = "decision-endpoints-bench"
VERSION = 1


@dataclass(frozen=True)
class Answer:
    """What is kept of the wire's R."""

    probabilities: Mapping[str, float]  # by the option's id, in the order in which they were asked
    logits: Mapping[str, float]  # likewise, before any calibration
    option_mass: float  # share of the whole vocabulary's probability on the options
    input_tokens: int
    cached_tokens: int
    prompt_sha256: str
    model_seconds: float  # `forward_seconds`: evaluating the prompt
    server_seconds: float  # `total_seconds`: from the request's arrival to its answer


@dataclass(frozen=True)
class Row:
    """One labelled decision and what became of it: exactly one of `answer` and `error`."""

    id: str
    family: str
    group: str  # rows of one group are not independent
    question_type: str
    options: tuple[str, ...]
    expected: str
    client_seconds: float  # from asking to the answer, with every retry
    answer: Answer | None
    error: str | None


@dataclass(frozen=True)
class Dataset:
    """The file that was asked."""

    file: str
    sha256: str
    rows: int  # that it holds; a run with a limit asks fewer


@dataclass(frozen=True)
class Target:
    """Whom it was asked."""

    described: str
    # The digest of the endpoint's image; None where nobody tells it, as for an adapter that was asked directly.
    image: str | None


@dataclass(frozen=True)
class Throughput:
    """How many decisions were answered in all, and in how long."""

    decisions: int
    wall_seconds: float
    concurrency: int


@dataclass(frozen=True)
class Run:
    """All that a report needs."""

    configuration: str  # the name that reports show
    date: str  # the begin, ISO 8601 in UTC
    commit: str | None  # this repository's; None outside of a checkout
    dataset: Dataset
    target: Target
    # Every different `model`, `prompt_version` and `probability_status` of the answers: more than one where the
    # instances differ.
    answered_by: tuple[Mapping[str, Any], ...]
    throughput: Throughput
    rows: tuple[Row, ...]


def write_run(run: Run, path: Path) -> None:
    """Write the run. Raises UsageError where that cannot be done."""
    document = {"format": FORMAT, "version": VERSION, **asdict(run)}
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def read_run(path: Path) -> Run:
    """Read a run. Raises UsageError where the file is none, or is one of another version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{path} is no run file of `decide bench`")
    if document.get("version") != VERSION:
        raise UsageError(f"{path} is a run file of version {document.get('version')!r}; this program reads {VERSION}")
    try:
        return Run(
            configuration=str(document["configuration"]),
            date=str(document["date"]),
            commit=document["commit"],
            dataset=Dataset(**document["dataset"]),
            target=Target(**document["target"]),
            answered_by=tuple(dict(each) for each in document["answered_by"]),
            throughput=Throughput(**document["throughput"]),
            rows=tuple(_row(row) for row in document["rows"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not as `decide bench` writes it: {error}") from error


def _row(row: Mapping[str, Any]) -> Row:
    answer = None if row["answer"] is None else Answer(**row["answer"])
    found = Row(**{**row, "options": tuple(row["options"]), "answer": answer})
    if (found.answer is None) == (found.error is None):
        raise ValueError(f"row {found.id!r} must have either an answer or an error")
    if found.expected not in found.options:
        raise ValueError(f"row {found.id!r} expects {found.expected!r}, which is none of its options")
    if found.answer is not None:
        check_probabilities(found.answer.probabilities, found.options)
    return found


def check_probabilities(probabilities: Mapping[str, float], options: tuple[str, ...]) -> None:
    """Raises ValueError where they are not one probability for each option, in order, with a sum of 1."""
    if tuple(probabilities) != options:
        raise ValueError("the answer's options are not those that were asked")
    values = probabilities.values()
    if not all(math.isfinite(p) and p >= 0 for p in values) or not math.isclose(sum(values), 1, abs_tol=1e-6):
        raise ValueError("the answer's probabilities are no distribution")
