"""A calibration is added to a file without losing another, and labelled rows become the decisions that are asked."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from adapter.api.systemone import parse_systemone
from ops.calibrate.file import add, check_target
from ops.errors import UsageError
from ops.labelled import read_labelled

ENTRY = {"temperature": 1.5, "temperatures": {"noul": 1.2}, "evidence": {"file": "ü.jsonl"}}


def test_a_name_is_added_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "calibrations.json"
    add(path, "first", ENTRY)
    path.chmod(0o640)
    add(path, "second", {"temperature": 2.0})
    assert list(json.loads(path.read_text()).items()) == [("first", ENTRY), ("second", {"temperature": 2.0})]
    assert "ü.jsonl" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [file.name for file in tmp_path.iterdir()] == ["calibrations.json"]


def test_a_name_that_is_taken_is_kept_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "calibrations.json"
    add(path, "first", ENTRY)
    with pytest.raises(
        UsageError, match=r"holds a calibration 'first' already: choose another --name, or add --replace"
    ):
        check_target(path, "first", replace=False)
    assert check_target(path, "first", replace=True) == {"first": ENTRY}


@pytest.mark.parametrize(
    ("name", "content", "where", "message"),
    [
        ("a b", None, "c.json", "--name: the name 'a b' must be"),
        ("a", "[]", "c.json", "--output: .*c.json: it must hold an object"),
        ("a", '{"b": {"temperature": 0}}', "c.json", "the temperature of 'b' must be"),
        ("a", None, "nowhere/c.json", "--output: there is no folder .*nowhere"),
    ],
)
def test_what_cannot_be_written_to_is_refused_before_anything_is_asked(
    tmp_path: Path, name: str, content: str | None, where: str, message: str
) -> None:
    if content is not None:
        (tmp_path / where).write_text(content)
    with pytest.raises(UsageError, match=message):
        check_target(tmp_path / where, name, replace=False)


def test_a_file_that_would_be_too_long_for_the_adapter_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "calibrations.json"
    add(path, "first", ENTRY)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="at most 65536 are allowed"):
        add(path, "second", {"temperature": 1.0, "evidence": {"file": "x" * 70_000}})
    assert path.read_bytes() == before


def _row(question: Any, expected: Any, **changes: Any) -> dict[str, Any]:
    return {"id": "r", "state": {"a": [1]}, "question": question, "expected": expected, **changes}


NOUL = {"type": "noul", "instructions": "Refund?", "criteria": {"false": "Only a question"}}
CHOICE = {"type": "choice", "instructions": None, "criteria": {"z": "Last", "a": None}}
SCORE = {"type": "score", "criteria": ["low", {"l": "high"}]}


@pytest.mark.parametrize(
    ("question", "expected", "ids", "label"),
    [
        (NOUL, "no", ["yes", "no"], 1),
        (NOUL, True, ["yes", "no"], 0),
        ({"type": "noul", "instructions": "Refund?"}, "yes", ["yes", "no"], 0),
        (CHOICE, "a", ["z", "a"], 1),
        (SCORE, 1, ["0", "1"], 1),
        (SCORE, "0", ["0", "1"], 0),
    ],
)
def test_a_row_is_asked_as_system_one_asks_it(
    tmp_path: Path, question: dict[str, Any], expected: Any, ids: list[str], label: int
) -> None:
    """Same words in the same order, so that temperatures fitted here are those of System One's logits."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(_row(question, expected)) + "\n\n")
    (row,) = read_labelled(path).rows
    (decision,) = parse_systemone({"state": {"a": [1]}, "model": "m", "questions": {"r": question}}).decisions()
    assert row.decision["question"] == decision.question
    assert [option["description"] for option in row.decision["options"]] == [o.description for o in decision.options]
    assert [option["id"] for option in row.decision["options"]] == ids
    assert (row.label, row.question_type, row.group) == (label, decision.question_type, "r")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1 is not JSON"),
        (["[]"], "line 1: it must be an object"),
        ([json.dumps(_row(NOUL, "maybe"))], "line 1: 'expected' is 'maybe', and the options are yes, no"),
        ([json.dumps(_row(SCORE, 2))], "line 1: 'expected' is 2, and the options are 0, 1"),
        ([json.dumps(_row({"type": "predicate"}, "yes"))], "one of the types noul, choice, score"),
        ([json.dumps(_row({"type": "choice", "criteria": {"a": "A"}}, "a"))], "must be two names at least"),
        ([json.dumps(_row(NOUL, "no", state=""))], "'state' must be a nonempty string"),
        ([json.dumps(_row(NOUL, "no", id=7))], "'id' must be a nonempty string, not 7"),
        ([json.dumps(_row(NOUL, "no")), json.dumps(_row(NOUL, "yes"))], "line 2: the id 'r' occurs twice"),
        ([""], "holds no labelled decision"),
    ],
)
def test_a_row_that_is_none_is_named_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=message):
        read_labelled(path)
