"""OpenAI's Decisions API: its requests as decisions, results as its answers, errors in its shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from adapter.api.confidence import choice_confidence, score_confidence
from adapter.api.errors import UNKNOWN_MODEL, ApiError, Fault, faults_of, invalid
from adapter.api.openai_input import INPUT_SCHEMA, INSTRUCTIONS_SCHEMA, parts_text, state_of
from adapter.api.schema import ModelName, NonEmpty
from adapter.result import Count, Probability, Result, closed
from adapter.service import Decision, Option

# A predicate is a statement to some callers and a question to others: both ways of reading must fit.
YES = "Yes, it is true."
NO = "No, it is not true."

_QUESTION_TYPES = ("predicate", "choice", "score")


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _check_value(value: Any) -> str | bool:
    if not isinstance(value, str | bool):
        raise PydanticCustomError("value_type", "Input should be a string or a boolean")
    return value


_Value = Annotated[Any, AfterValidator(_check_value), WithJsonSchema({"type": ["string", "boolean"]})]
_Instructions = Annotated[Any, WithJsonSchema(INSTRUCTIONS_SCHEMA)]


@closed
class PredicateAnswer(TypedDict):
    """How likely it is true."""

    type: Literal["predicate"]
    name: str | None
    probability: Probability


@closed
class ChoiceProbability(TypedDict):
    """One of the choices."""

    value: _Value
    probability: Probability


@closed
class ChoiceAnswer(TypedDict):
    """The likeliest choice, and the probability of each in the order asked."""

    type: Literal["choice"]
    name: str | None
    choice: _Value
    confidence: Probability
    probabilities: list[ChoiceProbability]


@closed
class LevelProbability(TypedDict):
    """One of the levels."""

    label: str
    value: Count
    probability: Probability


@closed
class ScoreAnswer(TypedDict):
    """The expected level, and the probability of each."""

    type: Literal["score"]
    name: str | None
    score: Annotated[float, Field(ge=0, le=9)]
    confidence: Probability
    probabilities: list[LevelProbability]


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


@closed
class InputTokensDetails(TypedDict):
    """Tokens that a kept state spared; nothing is kept at the caller's demand."""

    cached_tokens: Count
    cache_write_tokens: Literal[0]


@closed
class OutputTokensDetails(TypedDict):
    """Nothing is generated."""

    reasoning_tokens: Literal[0]


@closed
class Usage(TypedDict):
    """Tokens of all questions together."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Literal[0]
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


@closed
class Response(TypedDict):
    """An answer to each question, in order."""

    model: str
    answers: list[Answer]
    usage: Usage


class ChoiceBody(_Strict):
    """A choice; values are unique, and `true` is not `"true"`."""

    value: _Value
    description: str | None = None

    @property
    def shown(self) -> str:
        """What the model reads."""
        return _labelled(self.value if isinstance(self.value, str) else json.dumps(self.value), self.description)


class LevelBody(_Strict):
    """A level."""

    label: NonEmpty
    description: str | None = None

    @property
    def shown(self) -> str:
        """What the model reads."""
        return _labelled(self.label, self.description)


class Predicate(_Strict):
    """How likely is it true?"""

    type: Literal["predicate"]
    instructions: _Instructions
    name: str | None = None

    def options(self) -> list[str]:
        """True, then false."""
        return [YES, NO]

    def answer(self, probabilities: Sequence[float]) -> PredicateAnswer:
        """On the wire."""
        return {"type": "predicate", "name": self.name, "probability": probabilities[0]}


class Choice(_Strict):
    """Which of these?"""

    type: Literal["choice"]
    instructions: _Instructions
    choices: Annotated[list[ChoiceBody], Field(min_length=2, max_length=255, json_schema_extra={"uniqueItems": True})]
    name: str | None = None

    @field_validator("choices")
    @classmethod
    def _check_unique(cls, choices: list[ChoiceBody]) -> list[ChoiceBody]:
        seen: set[tuple[type, str | bool]] = set()
        for choice in choices:
            typed = (type(choice.value), choice.value)
            if typed in seen:
                raise PydanticCustomError(
                    "not_unique",
                    "The value {value} occurs twice",
                    {"value": json.dumps(choice.value, ensure_ascii=False)},
                )
            seen.add(typed)
        return choices

    def options(self) -> list[str]:
        """In order."""
        return [choice.shown for choice in self.choices]

    def answer(self, probabilities: Sequence[float]) -> ChoiceAnswer:
        """On the wire."""
        values = [choice.value for choice in self.choices]
        return {
            "type": "choice",
            "name": self.name,
            "choice": values[probabilities.index(max(probabilities))],
            "confidence": choice_confidence(probabilities),
            "probabilities": [
                {"value": value, "probability": p} for value, p in zip(values, probabilities, strict=True)
            ],
        }


class Score(_Strict):
    """Which of these levels, numbered from 0?"""

    type: Literal["score"]
    instructions: _Instructions
    levels: Annotated[list[LevelBody], Field(min_length=2, max_length=10)]
    name: str | None = None

    def options(self) -> list[str]:
        """In order."""
        return [level.shown for level in self.levels]

    def answer(self, probabilities: Sequence[float]) -> ScoreAnswer:
        """On the wire."""
        return {
            "type": "score",
            "name": self.name,
            "score": sum(level * p for level, p in enumerate(probabilities)),
            "confidence": score_confidence(probabilities),
            "probabilities": [
                {"label": level.label, "value": value, "probability": p}
                for value, (level, p) in enumerate(zip(self.levels, probabilities, strict=True))
            ],
        }


Question = Annotated[Predicate | Choice | Score, Field(discriminator="type")]


class Request(_Strict):
    """Questions about one input."""

    model: ModelName
    input: Annotated[Any, WithJsonSchema(INPUT_SCHEMA)]
    questions: Annotated[list[Question], Field(min_length=1, max_length=400)]
    # Accepted and without effect: what is cached here depends on the prompts alone.
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None


@dataclass(frozen=True)
class DecisionsRequest:
    """A checked request."""

    state: Any
    model: str
    questions: list[Predicate | Choice | Score]
    instructions: list[str]  # one for each question

    def decisions(self) -> list[Decision]:
        """One for each question, in order."""
        return [
            Decision(
                question.name or f"questions[{index}]",
                self.state,
                asked,
                tuple(Option(str(number), text) for number, text in enumerate(question.options())),
                question_type="noul" if isinstance(question, Predicate) else question.type,
            )
            for index, (question, asked) in enumerate(zip(self.questions, self.instructions, strict=True))
        ]

    def response(self, results: Sequence[Result], model: str) -> Response:
        """What the service answered to `decisions`, on the wire; `model` is the name of the one that answered."""
        tokens = sum(result["input_tokens"] for result in results)
        answers: list[Answer] = [
            question.answer(result["probabilities"]) for question, result in zip(self.questions, results, strict=True)
        ]
        return {
            "model": model,
            "answers": answers,
            "usage": {
                "input_tokens": tokens,
                "input_tokens_details": {
                    "cached_tokens": sum(result["cached_tokens"] for result in results),
                    "cache_write_tokens": 0,  # nothing is kept at the caller's demand
                },
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": tokens,
            },
        }


def parse_decisions(body: Any) -> DecisionsRequest:
    """Check a body. Raises `ApiError` 400 with the place of what is wrong."""
    try:
        checked = Request.model_validate(body)
    except ValidationError as error:
        raise invalid([_without_tag(fault) for fault in faults_of(error)]) from error
    instructions = [
        parts_text(question.instructions, ("questions", index, "instructions"))
        for index, question in enumerate(checked.questions)
    ]
    return DecisionsRequest(state_of(checked.input), checked.model, checked.questions, instructions)


def _without_tag(fault: Fault) -> Fault:
    """pydantic puts a question's type into the place of what is wrong in it; the caller's body has no such key."""
    where = fault.where
    if where[:1] == ("questions",) and where[2:3] and where[2] in _QUESTION_TYPES:
        where = (*where[:2], *where[3:])
    return Fault(where, fault.message, fault.kind)


def _labelled(label: str, description: str | None) -> str:
    return ": ".join(filter(None, (label, description)))


@closed
class ErrorBody(TypedDict):
    """What went wrong, and where in the body (`input[0].content`)."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str | None


@closed
class Error(TypedDict):
    """Any error."""

    error: ErrorBody


def error_response(error: ApiError) -> JSONResponse:
    """As OpenAI's service answers, so that its clients raise the exception that fits."""
    unknown_model = error.code == UNKNOWN_MODEL
    body: ErrorBody = {
        "message": str(error),
        "type": "server_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error",
        "param": _param(error.faults[0].where) if error.faults else ("model" if unknown_model else None),
        "code": "model_not_found" if unknown_model else error.code,
    }
    told: Error = {"error": body}
    return JSONResponse(told, status_code=404 if unknown_model else error.status)


def _param(where: tuple[str | int, ...]) -> str | None:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)
    return path.removeprefix(".") or None
