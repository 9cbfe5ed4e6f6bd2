"""The files that a run writes, a line for each row: what was answered, to go on from, and what failed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ops.client import Outcome
from ops.errors import UsageError
from ops.invoke.rows import BadRow, Row

_OTHER = "give another --output, or move this one away"


@dataclass(frozen=True)
class Output:
    """Answers: a file that is added to, or a stream.

    `before` has the numbers of the rows that it held already, and whether each fell back.
    """

    file: IO[str]
    before: Mapping[int, bool]

    def add(self, row: Row, outcome: Outcome, result: Mapping[str, Any]) -> None:
        """Write an answered row, so that it is there whatever comes next."""
        line = {
            "row": row.number,
            "id": row.id,
            "digest": row.digest,
            "choice": outcome.choice,
            "probability": outcome.probability,
            "fallback": outcome.why,
            "result": result,
        }
        write_line(self.file, line)


def failure_line(row: Row | BadRow, reason: str, status: int | None) -> dict[str, Any]:
    """A failed row, as the failures' file has it."""
    return {"row": row.number, "id": row.id, "status": status, "reason": reason}


def write_line(file: IO[str], value: Mapping[str, Any]) -> None:
    """One JSON line, at once."""
    file.write(json.dumps(value, allow_nan=False) + "\n")
    file.flush()


@contextmanager
def opened_output(path: Path, rows: Sequence[Row | BadRow]) -> Iterator[Output]:
    """The file of the answers, made or gone on with; a line that an interruption cut off is taken away.

    Raises UsageError where another run writes to it, where it holds something else, or answers to other rows.
    """
    try:
        file = path.open("a+", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"--output {path} is being written by another run") from error
        before = _answered(path, rows)
        yield Output(file, before)


def _answered(path: Path, rows: Sequence[Row | BadRow]) -> dict[int, bool]:
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    digests = {row.number: row.digest for row in rows if isinstance(row, Row)}
    found: dict[int, bool] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            said = json.loads(line)
            row, digest = said["row"], said["digest"]
            fell_back = said["fallback"] is not None
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"line {number} of {path} is no answer of decide invoke: {_OTHER}") from error
        if digests.get(row) != digest:
            raise UsageError(
                f"{path} answers another input: line {row} of this one is not the decision, or has not the thresholds, "
                f"that it answers: {_OTHER}"
            )
        found[row] = fell_back
    # What was cut off is a beginning of a line of ours, or else the file is somebody's.
    if not found and (torn := content[len(whole) :]) and not torn.startswith(b'{"row": '[: len(torn)]):
        raise UsageError(f"{path} holds something else than answers of decide invoke: {_OTHER}")
    if len(whole) != len(content):
        os.truncate(path, len(whole))
    return found


@contextmanager
def opened_failures(path: Path) -> Iterator[IO[str]]:
    """The file of the failures, written anew: what failed before is asked again.

    Raises UsageError where it holds something else, which is not written over.
    """
    try:
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as held:
                first = held.readline()
            if not first.startswith(b'{"row": ') or b'"reason": ' not in first:
                raise UsageError(f"--failures {path} holds something else than failures of decide invoke: name another")
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"--failures {path} cannot be written: {error.strerror}") from error
    with file:
        yield file
