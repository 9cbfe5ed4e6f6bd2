"""System One requests as decisions: what the model is asked, and the place of what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapter.api.errors import ApiError
from adapter.api.systemone import error_response, parse_systemone


def _body(question: Any, **changes: Any) -> dict[str, Any]:
    return {"state": "s", "model": "jev-latest", "questions": {"q": question}, **changes}


def _asked(question: Any) -> tuple[str, list[str]]:
    (decision,) = parse_systemone(_body(question)).decisions()
    return decision.question, [option.description for option in decision.options]


@pytest.mark.parametrize(
    ("question", "asked", "options"),
    [
        (
            {"type": "noul", "instructions": "Refund?"},
            "Refund?",
            ["The answer to the question is yes.", "The answer to the question is no."],
        ),
        (
            {"type": "noul", "instructions": "Refund?", "criteria": {"false": "Only a question"}},
            "Refund?",
            ["The answer to the question is yes.", "Only a question"],
        ),
        ({"type": "noul", "criteria": {"true": "T", "false": "F"}}, "Which statement is true?", ["T", "F"]),
        (
            {
                "type": "choice",
                "instructions": ["a", {"b": "ü"}],
                "criteria": {"z": None, "y": {"k": [1, 2]}, "x": "X"},
            },
            '["a", {"b": "ü"}]',
            ["z", '{"k": [1, 2]}', "X"],
        ),
        ({"type": "choice", "criteria": {"a": None, "b": None}}, "Which option applies?", ["a", "b"]),
        ({"type": "score", "criteria": ["low", {"l": "high"}]}, "Which level applies?", ["low", '{"l": "high"}']),
    ],
)
def test_what_the_model_is_asked(question: dict[str, Any], asked: str, options: list[str]) -> None:
    assert _asked(question) == (asked, options)


def test_all_questions_share_the_state_and_keep_their_order() -> None:
    noul = {"type": "noul", "instructions": "?"}
    request = parse_systemone({"state": [1, {"a": 2}], "model": "m", "questions": {"b.1": noul, "a 🎯": noul}})
    assert [(decision.id, decision.state) for decision in request.decisions()] == [
        ("b.1", [1, {"a": 2}]),
        ("a 🎯", [1, {"a": 2}]),
    ]


def _result(*probabilities: float) -> Any:
    return {
        "probabilities": list(probabilities),
        "input_tokens": 100,
        "cached_tokens": 60,
        "allowed_token_mass": 0.5,
        "probability_status": "uncalibrated softmax over the declared options",
    }


def test_answers_on_the_wire() -> None:
    request = parse_systemone(
        {
            "state": "s",
            "model": "m",
            "questions": {
                "n": {"type": "noul", "instructions": "?"},
                "c": {"type": "choice", "criteria": {"x": None, "é": None, "e\u0301": "other"}},
                "s": {"type": "score", "criteria": ["low", {"mid": 1}, "high"]},
            },
        }
    )
    response = request.response([_result(0.25, 0.75), _result(0.2, 0.2, 0.6), _result(0.0, 0.5, 0.5)], "the-model")
    assert response == {
        "model": "the-model",
        "answers": {
            "n": {"type": "noul", "noul": 0.25, "x_allowed_token_mass": 0.5},
            "c": {
                "type": "choice",
                "choice": "e\u0301",
                "probabilities": {"x": 0.2, "é": 0.2, "e\u0301": 0.6},
                "confidence": pytest.approx(0.4),
                "x_allowed_token_mass": 0.5,
            },
            "s": {
                "type": "score",
                "score": 1.5,
                "legend": {"0": "low", "1": {"mid": 1}, "2": "high"},
                "probabilities": {"0": 0.0, "1": 0.5, "2": 0.5},
                "confidence": pytest.approx(0.25),
                "x_allowed_token_mass": 0.5,
            },
        },
        "usage": {"input_tokens": 300, "output_tokens": 0},
        "x_cached_tokens": 180,
    }


@pytest.mark.parametrize(
    ("body", "where", "message"),
    [
        ([], ["body"], "Input should be an object"),
        (_body({"type": "noul", "instructions": "?"}, state=None), ["body", "state"], "string, an object or an array"),
        (_body({"type": "noul", "instructions": "?"}, questions={}), ["body", "questions"], "at least 1"),
        (_body({"instructions": "?"}), ["body", "questions", "q"], "'type'"),
        (_body({"type": "boolean"}), ["body", "questions", "q"], "'noul', 'choice', 'score'"),
        (_body({"type": "box"}), ["body", "questions", "q"], "images, which are not supported"),
        (_body({"type": "noul"}), ["body", "questions", "q", "noul"], "'instructions' and 'criteria'"),
        (
            _body({"type": "noul", "instructions": 5}),
            ["body", "questions", "q", "noul", "instructions"],
            "string, an object or an array",
        ),
        (
            _body({"type": "noul", "instructions": "?", "criteria": {"maybe": "x"}}),
            ["body", "questions", "q", "noul", "criteria", "maybe"],
            "not permitted",
        ),
        (
            _body({"type": "choice", "criteria": {"a": None}}),
            ["body", "questions", "q", "choice", "criteria"],
            "at least 2",
        ),
        (
            _body({"type": "choice", "criteria": {str(number): None for number in range(256)}}),
            ["body", "questions", "q", "choice", "criteria"],
            "at most 255",
        ),
        (
            _body({"type": "score", "criteria": {"0": "a", "1": "b"}}),
            ["body", "questions", "q", "score", "criteria"],
            "valid list",
        ),
        (
            _body({"type": "score", "criteria": [str(number) for number in range(11)]}),
            ["body", "questions", "q", "score", "criteria"],
            "at most 10",
        ),
        (
            _body({"type": "score", "criteria": ["a", None]}),
            ["body", "questions", "q", "score", "criteria", 1],
            "string, an object or an array",
        ),
        (
            _body({"type": "noul", "instructions": "?"}, assets={"a": {}}),
            ["body", "assets"],
            "images are not supported",
        ),
    ],
)
def test_what_is_wrong_is_a_422_with_its_place(body: Any, where: list[Any], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_systemone(body)
    response = error_response(caught.value)
    assert response.status_code == 422
    (fault,) = json.loads(bytes(response.body))["detail"]
    assert fault["loc"] == where
    assert message in fault["msg"]
    assert fault["type"]


def test_every_fault_of_a_body_is_told() -> None:
    with pytest.raises(ApiError, match=r"state: Field required \(and 2 more\)") as caught:
        parse_systemone({})
    assert [fault.where for fault in caught.value.faults] == [("state",), ("model",), ("questions",)]
