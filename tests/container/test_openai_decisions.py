"""OpenAI Decisions requests as decisions: what the model is shown and asked, and the place of what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Decision as OpenAIDecision

from adapter.api.errors import ApiError
from adapter.api.openai_decisions import error_response, parse_decisions

PREDICATE = {"type": "predicate", "instructions": "Refund?"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def _body(**changes: Any) -> dict[str, Any]:
    return {"model": "gpt-6-luna", "input": "text", "questions": [PREDICATE], **changes}


def _state(items: Any) -> Any:
    return parse_decisions(_body(input=items)).decisions()[0].state


def test_a_string_is_the_state() -> None:
    assert _state("Hello <|im_end|>") == "Hello <|im_end|>"


def test_messages_calls_and_outputs_are_the_state() -> None:
    items = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "type": "message", "content": [{"type": "input_text", "text": "One language."}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Where is it?", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "input_json", "data": [{"order": 7}]},
            ],
        },
        {"type": "custom_tool_call", "call_id": "c", "name": "run", "namespace": "shell", "input": "{not json"},
        {"type": "function_call", "call_id": "c", "name": "find", "arguments": '{"order": 7}', "id": "x"},
        {"type": "function_call", "call_id": "d", "name": "find", "arguments": "order 7", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": "in transit"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {
            "role": "assistant",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "On its way."}, {"type": "refusal", "refusal": "No map."}],
        },
    ]
    assert _state(items) == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "One language."},
        {"role": "user", "content": ["Where is it?", [{"order": 7}]]},
        {"tool_call": 1, "name": "shell.run", "input": "{not json"},
        {"tool_call": 2, "name": "find", "arguments": {"order": 7}},
        {"tool_call": 3, "name": "find", "arguments": "order 7"},
        {"tool_output": 2, "output": "in transit"},
        {"tool_output": 1, "output": ["a", "b"]},
        {"role": "assistant", "content": ["On its way.", {"refusal": "No map."}]},
    ]


def test_the_ids_of_calls_do_not_change_the_state() -> None:
    def conversation(call_id: str) -> list[dict[str, str]]:
        return [
            {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": call_id, "output": "1"},
        ]

    assert _state(conversation("call_abc")) == _state(conversation("call_xyz"))


def test_questions_as_options() -> None:
    request = parse_decisions(
        _body(
            questions=[
                PREDICATE,
                {
                    "type": "choice",
                    "name": "team",
                    "instructions": [
                        {"type": "input_text", "text": "Which?"},
                        {"type": "input_json", "data": {"a": 1}},
                    ],
                    "choices": [{"value": True}, {"value": "true"}, {"value": "b", "description": "Billing"}],
                },
                {
                    "type": "score",
                    "instructions": "How bad?",
                    "levels": [{"label": "low"}, {"label": "high", "description": "Nothing works."}],
                },
            ]
        )
    )
    asked = [(one.id, one.question, [option.description for option in one.options]) for one in request.decisions()]
    assert asked == [
        ("questions[0]", "Refund?", ["Yes, it is true.", "No, it is not true."]),
        ("team", 'Which?\n{"a": 1}', ["true", "true", "b: Billing"]),
        ("questions[2]", "How bad?", ["low", "high: Nothing works."]),
    ]


def test_answers_on_the_wire() -> None:
    request = parse_decisions(
        _body(
            questions=[
                {**PREDICATE, "name": "refund"},
                {"type": "choice", "instructions": "?", "choices": [{"value": "true"}, {"value": True}]},
                {"type": "score", "instructions": "?", "levels": [{"label": "low"}, {"label": "high"}]},
            ]
        )
    )
    results: Any = [
        {"probabilities": list(pair), "input_tokens": 100, "cached_tokens": 60}
        for pair in ((0.75, 0.25), (0.25, 0.75), (0.5, 0.5))
    ]
    response = request.response(results, "the-model")
    assert response == {
        "model": "the-model",
        "answers": [
            {"type": "predicate", "name": "refund", "probability": 0.75},
            {
                "type": "choice",
                "name": None,
                "choice": True,
                "confidence": pytest.approx(0.5),
                "probabilities": [{"value": "true", "probability": 0.25}, {"value": True, "probability": 0.75}],
            },
            {
                "type": "score",
                "name": None,
                "score": 0.5,
                "confidence": pytest.approx(0.0),
                "probabilities": [
                    {"label": "low", "value": 0, "probability": 0.5},
                    {"label": "high", "value": 1, "probability": 0.5},
                ],
            },
        ],
        "usage": {
            "input_tokens": 300,
            "input_tokens_details": {"cached_tokens": 180, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 300,
        },
    }
    OpenAIDecision.model_validate(response, strict=True)


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"input": ""}, "input", "nonempty string"),
        ({"input": []}, "input", "nonempty list"),
        ({"input": 5}, "input", "nonempty string"),
        ({"input": ["text"]}, "input[0]", "must be an object"),
        ({"input": [{"content": "x"}]}, "input[0].role", "'user', 'developer', 'system', 'assistant'"),
        ({"input": [{"type": "reasoning"}]}, "input[0].type", "'function_call'"),
        ({"input": [{"type": ["message"]}]}, "input[0].type", "'function_call'"),
        ({"input": [{"role": "user"}]}, "input[0].content", "'input_text' or 'input_json'"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]", "images are not supported"),
        (
            {"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
            "input[0].content[0]",
            "'output_text' or 'refusal'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]},
            "input[0].content[0].data",
            "an object or a list of objects",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].call_id",
            "'c' is not the id of a function_call",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 2},
            "input[1].call_id",
            "another call",
        ),
        ({"questions": []}, "questions", "at least 1"),
        ({"questions": [PREDICATE] * 401}, "questions", "at most 400"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", "required"),
        ({"questions": [{**PREDICATE, "instructions": ""}]}, "questions[0].instructions", "not be empty"),
        ({"questions": [{**PREDICATE, "instructions": [IMAGE]}]}, "questions[0].instructions[0]", "images"),
        ({"questions": [{**PREDICATE, "weight": 1}]}, "questions[0].weight", "not permitted"),
        ({"questions": [{"type": "yes"}]}, "questions[0]", "'predicate', 'choice', 'score'"),
        (
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": True}] * 2}]},
            "questions[0].choices",
            "The value true occurs twice",
        ),
        (
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": 1}, {"value": "a"}]}]},
            "questions[0].choices[0].value",
            "string or a boolean",
        ),
        (
            {"questions": [{"type": "score", "instructions": "?", "levels": [{"label": "a"}] * 11}]},
            "questions[0].levels",
            "at most 10",
        ),
        ({"temperature": 1}, "temperature", "not permitted"),
        ({"model": None}, "model", "valid string"),
    ],
)
def test_what_is_wrong_is_a_400_with_its_parameter(changes: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_decisions(_body(**changes))
    response = error_response(caught.value)
    assert response.status_code == 400
    error = json.loads(bytes(response.body))["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert message in error["message"]
