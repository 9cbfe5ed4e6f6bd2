"""What becomes of rows whose target refuses them, answers nonsense or cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ops.bench.ask import ask
from ops.client import DecisionError, UnreachableError
from ops.labelled import Labelled


def labelled(id_: str) -> Labelled:
    """A decision between x and y, of which y is right."""
    options = [{"id": name, "description": name.upper()} for name in ("x", "y")]
    decision = {"id": id_, "state": "s", "question": "?", "options": options}
    return Labelled(id_, "choice", "g", decision, 1, "f")


def result(**changed: Any) -> dict[str, Any]:
    """As far as a run reads the wire's R."""
    return {
        "option_ids": ["x", "y"],
        "probabilities": [0.25, 0.75],
        "option_logits": [1.0, 2.0],
        "allowed_token_mass": 0.5,
        "input_tokens": 90,
        "cached_tokens": 30,
        "prompt_sha256": "ab",
        "forward_seconds": 0.1,
        "total_seconds": 0.2,
        "model": {"name": "m", "threads": 2},
        "prompt_version": "v",
        "probability_status": "uncalibrated",
        **changed,
    }


def test_a_row_says_why_it_has_no_answer_and_the_others_go_on() -> None:
    found: Mapping[str, Any] = {
        "too long": DecisionError("the prompt has 9000 tokens", status=413),
        "half": result(probabilities=[0.5, 0.4]),
        "not a number": result(probabilities=[float("nan"), 1.0]),
        "negative": result(probabilities=[-0.5, 1.5]),
        "others": result(option_ids=["y", "x"]),
        "one": result(probabilities=[1.0]),
        "no mass": {name: value for name, value in result().items() if name != "allowed_token_mass"},
        "no model": {name: value for name, value in result().items() if name != "model"},
        "good": result(),
    }

    def decide(decision: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = found[decision["id"]]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    asked = ask([labelled(id_) for id_ in found], decide, concurrency=1)
    errors = {row.id: row.error for row in asked.rows}
    assert errors == {
        "too long": "the prompt has 9000 tokens",
        "half": "the answer's probabilities are no distribution",
        "not a number": "the answer's probabilities are no distribution",
        "negative": "the answer's probabilities are no distribution",
        "others": "the answer's options are not those that were asked",
        "one": errors["one"],  # in Python's words
        "no mass": "the answer is none of a decision endpoint: 'allowed_token_mass'",
        "no model": "the answer is none of a decision endpoint: 'model'",
        "good": None,
    }
    assert errors["one"]
    assert all((row.answer is None) == (row.error is not None) for row in asked.rows)
    assert (asked.throughput.decisions, asked.throughput.concurrency) == (1, 1)
    good = asked.rows[-1]
    assert (good.expected, good.family, good.group) == ("y", "f", "g")
    assert good.answer is not None
    assert good.answer.probabilities == {"x": 0.25, "y": 0.75}


def test_every_different_model_is_kept_once() -> None:
    def decide(decision: Mapping[str, Any]) -> Mapping[str, Any]:
        return result(model={"name": "m", "threads": 8 if decision["id"] == "2" else 2})

    asked = ask([labelled(id_) for id_ in ("1", "2", "3")], decide, concurrency=1)
    assert [by["model"]["threads"] for by in asked.answered_by] == [2, 8]


def test_who_cannot_be_reached_is_asked_no_further() -> None:
    asked: list[str] = []

    def decide(decision: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(decision["id"])
        raise UnreachableError("the endpoint does not exist")

    with pytest.raises(UnreachableError, match="does not exist"):
        ask([labelled(str(n)) for n in range(50)], decide, concurrency=1)
    assert asked == ["0"]


@pytest.mark.parametrize("first", [result(), DecisionError("the prompt has 9000 tokens", status=413)])
def test_who_answered_once_and_is_gone_costs_the_rows_only(first: Any) -> None:
    def decide(decision: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = first if decision["id"] == "1" else UnreachableError("nobody listens")
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    asked = ask([labelled("1"), labelled("2")], decide, concurrency=1)
    assert asked.rows[1].error == "nobody listens"
