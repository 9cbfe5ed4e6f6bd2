"""Labelled decisions, JevBench's JSON Lines, as the plain decisions that System One would make of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import UsageError
from stacks.calibrations import QUESTION_TYPES

# What System One shows and asks where a question says nothing of its own (container/adapter/api/systemone.py).
_YES = "The answer to the question is yes."
_NO = "The answer to the question is no."
_ASKED = {"noul": "Which statement is true?", "choice": "Which option applies?", "score": "Which level applies?"}


class _FaultError(ValueError):
    """What is wrong in a line."""


@dataclass(frozen=True)
class Labelled:
    """A decision and its right option."""

    id: str
    question_type: str
    group: str  # its own id where the row names none
    decision: Mapping[str, Any]  # the wire's D
    label: int  # index of the right option
    family: str  # the question's type where the row names none


@dataclass(frozen=True)
class LabelledFile:
    """The rows of a file, and what identifies it."""

    name: str
    sha256: str
    rows: tuple[Labelled, ...]


def read_labelled(path: Path) -> LabelledFile:
    """Read the file. Raises UsageError, with the line's number, for the first line that is no labelled decision."""
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from error
    rows: dict[str, Labelled] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _labelled(json.loads(line))
            if row.id in rows:
                raise _FaultError(f"the id {row.id!r} occurs twice")  # noqa: TRY301 - beside the others, with its line
        except _FaultError as fault:
            raise UsageError(f"{path}, line {number}: {fault}") from fault
        except ValueError as error:
            raise UsageError(f"{path}, line {number} is not JSON: {error}") from error
        rows[row.id] = row
    if not rows:
        raise UsageError(f"{path} holds no labelled decision")
    return LabelledFile(path.name, hashlib.sha256(content).hexdigest(), tuple(rows.values()))


def _labelled(row: Any) -> Labelled:
    if not isinstance(row, dict):
        raise _FaultError("it must be an object with id, state, question and expected")
    id_, state, question = (row.get(key) for key in ("id", "state", "question"))
    if not isinstance(id_, str) or not id_:
        raise _FaultError(f"'id' must be a nonempty string, not {id_!r}")
    if not isinstance(state, str | dict | list) or not state:
        raise _FaultError("'state' must be a nonempty string, object or array")
    if not isinstance(question, dict) or question.get("type") not in QUESTION_TYPES:
        raise _FaultError(f"'question' must be an object of one of the types {', '.join(QUESTION_TYPES)}")
    kind = question["type"]
    options = dict(_options(kind, question.get("criteria")))
    expected = row.get("expected")
    # A level is a number or its text, yes and no may be true and false.
    name = {True: "yes", False: "no"}[expected] if isinstance(expected, bool) else str(expected)
    if name not in options:
        raise _FaultError(f"'expected' is {expected!r}, and the options are {', '.join(options)}")
    asked = question.get("instructions") or _ASKED[kind]
    return Labelled(
        id_,
        kind,
        str(row.get("group") or id_),
        {
            "id": id_,
            "state": state,
            "question": _text(asked),
            "options": [{"id": name, "description": text} for name, text in options.items()],
        },
        list(options).index(name),
        str(row.get("family") or kind),
    )


def _options(kind: str, criteria: Any) -> Iterator[tuple[str, str]]:
    """Id and description of each, in the order in which System One shows them."""
    if kind == "noul" and (criteria is None or isinstance(criteria, dict)):
        meaning = criteria or {}
        yield "yes", _text(meaning.get("true") or _YES)
        yield "no", _text(meaning.get("false") or _NO)
    elif kind == "choice" and isinstance(criteria, dict) and len(criteria) > 1:
        for name, text in criteria.items():
            yield name, _text(text or name)
    elif kind == "score" and isinstance(criteria, list) and len(criteria) > 1:
        for level, text in enumerate(criteria):
            yield str(level), _text(text)
    else:
        wanted = {
            "noul": "'true' and 'false' or null",
            "choice": "two names at least",
            "score": "an array of two at least",
        }
        raise _FaultError(f"the criteria of a {kind} question must be {wanted[kind]}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
