"""TypeSafe System One: its requests as decisions, results as its answers, errors in its shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import JSONResponse
from typing_extensions import NotRequired, TypedDict

from adapter.api.confidence import choice_confidence, score_confidence
from adapter.api.errors import UNKNOWN_MODEL, ApiError, Fault, faults_of, invalid
from adapter.api.schema import ANY_TEXT, ModelName, NonEmpty
from adapter.readout import UNCALIBRATED
from adapter.result import Count, Probability, Result, closed
from adapter.service import Decision, Option

YES = "The answer to the question is yes."
NO = "The answer to the question is no."

# What is asked where a question has no instructions of its own.
_ASKED = {"noul": "Which statement is true?", "choice": "Which option applies?", "score": "Which level applies?"}

_ERROR_TYPES = {
    400: "api_usage_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
    503: "overloaded_error",
}


def _check_text(value: Any) -> Any:
    if not isinstance(value, str | dict | list):
        raise PydanticCustomError("text_type", "Input should be a string, an object or an array")
    return value


def _check_described(value: Any) -> Any:
    return None if value is None or value == "" else _check_text(value)


_Text = Annotated[Any, AfterValidator(_check_text), WithJsonSchema(ANY_TEXT)]
_Described = Annotated[
    Any, AfterValidator(_check_described), WithJsonSchema({"type": [*ANY_TEXT["type"], "null"], "default": None})
]
_SAYS_SOMETHING: dict[str, Any] = {"type": ANY_TEXT["type"], "minLength": 1}


def _with(field: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": [field], "properties": {field: schema}}


_ASKS_SOMETHING: list[Any] = [
    _with("instructions", _SAYS_SOMETHING),
    *(_with("criteria", {"type": "object", **_with(side, _SAYS_SOMETHING)}) for side in ("true", "false")),
]


@closed
class NoulAnswer(TypedDict):
    """The probability that the answer is yes."""

    type: Literal["noul"]
    noul: Probability
    x_allowed_token_mass: Probability
    x_probability_status: NotRequired[str]


@closed
class ChoiceAnswer(TypedDict):
    """The likeliest option and the probability of each, by name."""

    type: Literal["choice"]
    choice: str
    probabilities: dict[str, Probability]
    confidence: Probability
    x_allowed_token_mass: Probability
    x_probability_status: NotRequired[str]


@closed
class ScoreAnswer(TypedDict):
    """The expected level and the probability of each, by number."""

    type: Literal["score"]
    score: Annotated[float, Field(ge=0, le=9)]
    legend: dict[str, _Text]
    probabilities: dict[str, Probability]
    confidence: Probability
    x_allowed_token_mass: Probability
    x_probability_status: NotRequired[str]


Answer = NoulAnswer | ChoiceAnswer | ScoreAnswer


@closed
class Usage(TypedDict):
    """Tokens of all questions together."""

    input_tokens: Count
    output_tokens: Literal[0]


@closed
class Response(TypedDict):
    """An answer to each question, under its id."""

    model: str
    answers: dict[str, Answer]
    usage: Usage
    x_cached_tokens: Count


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NoulCriteria(_Strict):
    """What yes and no mean."""

    true: _Described = None
    false: _Described = None


class Noul(_Strict):
    """A question whose answer is yes or no."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _ASKS_SOMETHING})

    type: Literal["noul"]
    instructions: _Described = None
    criteria: NoulCriteria | None = None

    @model_validator(mode="after")
    def _check_asked(self) -> Noul:
        criteria = self.criteria
        if self.instructions is None and (criteria is None or (criteria.true is None and criteria.false is None)):
            raise PydanticCustomError("missing", "One of 'instructions' and 'criteria' must say what is asked")
        return self

    def options(self) -> list[Any]:
        """Yes, then no."""
        criteria = self.criteria or NoulCriteria()
        return [criteria.true or YES, criteria.false or NO]

    def answer(self, probabilities: Sequence[float], mass: float) -> NoulAnswer:
        """On the wire; `mass` is the share of the vocabulary's probability on the options."""
        return {"type": "noul", "noul": probabilities[0], "x_allowed_token_mass": mass}


class Choice(_Strict):
    """A question with named options."""

    type: Literal["choice"]
    instructions: _Described = None
    criteria: Annotated[dict[NonEmpty, _Described], Field(min_length=2, max_length=255)]

    def options(self) -> list[Any]:
        """Descriptions in order; an option without one is its name."""
        return [name if description is None else description for name, description in self.criteria.items()]

    def answer(self, probabilities: Sequence[float], mass: float) -> ChoiceAnswer:
        """On the wire."""
        by_name = dict(zip(self.criteria, probabilities, strict=True))
        return {
            "type": "choice",
            "choice": max(by_name, key=lambda name: by_name[name]),
            "probabilities": by_name,
            "confidence": choice_confidence(probabilities),
            "x_allowed_token_mass": mass,
        }


class Score(_Strict):
    """A question with ordered levels, numbered from 0."""

    type: Literal["score"]
    instructions: _Described = None
    criteria: Annotated[list[_Text], Field(min_length=2, max_length=10)]

    def options(self) -> list[Any]:
        """The levels in order."""
        return self.criteria

    def answer(self, probabilities: Sequence[float], mass: float) -> ScoreAnswer:
        """On the wire."""
        return {
            "type": "score",
            "score": sum(level * p for level, p in enumerate(probabilities)),
            "legend": {str(level): text for level, text in enumerate(self.criteria)},
            "probabilities": {str(level): p for level, p in enumerate(probabilities)},
            "confidence": score_confidence(probabilities),
            "x_allowed_token_mass": mass,
        }


Question = Annotated[Noul | Choice | Score, Field(discriminator="type")]


class Request(BaseModel):
    """Questions about one state, each under its id."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    state: _Text
    model: ModelName
    questions: Annotated[dict[NonEmpty, Question], Field(min_length=1)]
    assets: None = None  # `_refuse_images` says why not


@dataclass(frozen=True)
class SystemOneRequest:
    """A checked request."""

    state: Any
    model: str
    questions: dict[str, Noul | Choice | Score]

    def decisions(self) -> list[Decision]:
        """One for each question, in order."""
        return [self._decision(name, question) for name, question in self.questions.items()]

    def response(self, results: Sequence[Result], model: str) -> Response:
        """What the service answered to `decisions`, on the wire; `model` is the name of the one that answered."""
        answers: dict[str, Answer] = {}
        for (name, question), result in zip(self.questions.items(), results, strict=True):
            answers[name] = question.answer(result["probabilities"], result["allowed_token_mass"])
            if result["probability_status"] != UNCALIBRATED:
                answers[name]["x_probability_status"] = result["probability_status"]
        return {
            "model": model,
            "answers": answers,
            "usage": {"input_tokens": sum(result["input_tokens"] for result in results), "output_tokens": 0},
            "x_cached_tokens": sum(result["cached_tokens"] for result in results),
        }

    def _decision(self, name: str, question: Noul | Choice | Score) -> Decision:
        asked = _ASKED[question.type] if question.instructions is None else question.instructions
        options = tuple(Option(str(index), _text(option)) for index, option in enumerate(question.options()))
        return Decision(name, self.state, _text(asked), options, question_type=question.type)


def parse_systemone(body: Any) -> SystemOneRequest:
    """Check a body. Raises `ApiError` 400 with every fault and its place."""
    if isinstance(body, dict):
        _refuse_images(body)
    try:
        checked = Request.model_validate(body)
    except ValidationError as error:
        raise invalid(faults_of(error)) from error
    return SystemOneRequest(checked.state, checked.model, checked.questions)


def _refuse_images(body: dict[str, Any]) -> None:
    if body.get("assets") is not None:
        raise invalid([Fault(("assets",), "images are not supported by this model")])
    questions = body.get("questions")
    for name, question in questions.items() if isinstance(questions, dict) else ():
        if isinstance(question, dict) and question.get("type") == "box":
            raise invalid([Fault(("questions", name), "'box' questions ask about images, which are not supported")])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@closed
class FaultBody(TypedDict):
    """One thing that is wrong in the body, and where."""

    loc: list[str | int]
    msg: str
    type: str


@closed
class Faults(TypedDict):
    """What is wrong in the body."""

    detail: Annotated[list[FaultBody], Field(min_length=1)]


@closed
class ErrorDetail(TypedDict):
    """What went wrong."""

    error_type: str
    message: str


@closed
class Error(TypedDict):
    """Any error but a wrong body."""

    detail: ErrorDetail


def error_response(error: ApiError) -> JSONResponse:
    """As TypeSafe's service answers: a list of faults for a wrong body, else one error with its type."""
    if error.status == HTTPStatus.BAD_REQUEST and error.code != UNKNOWN_MODEL:
        faults = error.faults or [Fault((), str(error))]
        wrong: Faults = {
            "detail": [{"loc": ["body", *fault.where], "msg": fault.message, "type": fault.kind} for fault in faults]
        }
        return JSONResponse(wrong, status_code=422)
    body: Error = {"detail": {"error_type": _ERROR_TYPES.get(error.status, "internal_error"), "message": str(error)}}
    return JSONResponse(body, status_code=error.status)
