"""The bodies of `/invocations`: which API's it is, and the wire shapes of `decision` and `decisions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator
from typing_extensions import TypedDict

from adapter.api.errors import ApiError, faults_of, invalid
from adapter.api.schema import Integer, NonEmpty
from adapter.result import Result, Timing, closed
from adapter.service import Decision, Option

_STATE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "object", "minProperties": 1},
        {"type": "array", "minItems": 1},
    ]
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class OptionBody(_Strict):
    """One declared option."""

    id: NonEmpty
    description: NonEmpty


class DecisionBody(_Strict):
    """One question about one state, with the options to choose from. Their ids are unique."""

    id: NonEmpty
    state: Annotated[Any, WithJsonSchema(_STATE_SCHEMA)]
    question: NonEmpty
    options: Annotated[list[OptionBody], Field(min_length=2, max_length=255, json_schema_extra={"uniqueItems": True})]
    layout: Literal["state-first", "criteria-first"] = "state-first"
    calibration: NonEmpty | None = None
    permutations: Annotated[Integer, Field(ge=1, le=8)] = 1

    @field_validator("state")
    @classmethod
    def _check_state(cls, value: Any) -> Any:
        if not isinstance(value, str | dict | list) or not value:
            raise ValueError("must be a nonempty string, object or array")
        return value

    @field_validator("options")
    @classmethod
    def _check_options(cls, value: list[OptionBody]) -> list[OptionBody]:
        ids = [option.id for option in value]
        if len(set(ids)) != len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise ValueError(f"option id {twice!r} occurs twice")
        return value

    def to_decision(self) -> Decision:
        """As the service takes it."""
        options = tuple(Option(option.id, option.description) for option in self.options)
        return Decision(self.id, self.state, self.question, options, self.layout, self.calibration, self.permutations)


class OneDecision(_Strict):
    """One decision."""

    decision: DecisionBody


class SharedDecisions(_Strict):
    """Several decisions over one state: every `state` is equal, every `id` different."""

    decisions: Annotated[list[DecisionBody], Field(min_length=1)]


@closed
class OneResult(TypedDict):
    """The answer to one decision."""

    result: Result


@closed
class SharedResults(TypedDict):
    """The answers to several decisions, in order."""

    results: list[Result]
    timing: Timing


Kind = Literal["decision", "decisions", "systemone", "openai-decisions", "chat"]
KINDS: dict[str, Kind] = {  # by the top-level key that no other kind of body has
    "decision": "decision",
    "decisions": "decisions",
    "state": "systemone",
    "input": "openai-decisions",
    "messages": "chat",
}
_ACCEPTED = (
    "accepted are {'decision': ...}, {'decisions': [...]}, a System One request {'state', 'model', 'questions'}, "
    "an OpenAI Decisions request {'input', 'model', 'questions'} and an OpenAI chat request {'messages': [...]}"
)


def kind_of(body: Any) -> Kind:
    """Whose body it is. Raises `ApiError` 400, which names what is accepted, for one of no kind or of several."""
    found = [key for key in KINDS if key in body] if isinstance(body, dict) else []
    if len(found) == 1:
        return KINDS[found[0]]
    if not isinstance(body, dict):
        fault = "the body must be a JSON object"
    elif found:
        fault = f"the body has the keys of several kinds of request ({' and '.join(map(repr, found))})"
    else:
        fault = "the body is of no known kind"
    raise ApiError(400, f"{fault}; {_ACCEPTED}")


def parse_decision(body: dict[str, Any]) -> Decision:
    """The decision of a `decision` body. Raises `ApiError` 400 with the first fault and its place."""
    try:
        return OneDecision.model_validate(body).decision.to_decision()
    except ValidationError as error:
        raise invalid(faults_of(error)) from error


def parse_shared(body: dict[str, Any], max_shared: int) -> list[Decision]:
    """The decisions of a `decisions` body, in order. Raises `ApiError` 400 with the first fault and its place."""
    try:
        decisions = [item.to_decision() for item in SharedDecisions.model_validate(body).decisions]
    except ValidationError as error:
        raise invalid(faults_of(error)) from error
    if len(decisions) > max_shared:
        raise ApiError(400, f"decisions: {len(decisions)} in one request, at most {max_shared} are allowed")
    ids = [decision.id for decision in decisions]
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise ApiError(400, f"decisions: the id {twice!r} occurs twice; every id must be different")
    for index, decision in enumerate(decisions):
        if not _same_json(decision.state, decisions[0].state):
            raise ApiError(
                400, f"decisions.{index}.state differs from decisions.0.state; a shared request has one state"
            )
    return decisions


def _same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values in which 1, 1.0 and true differ, and so does the order of keys: the prompt shows it."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(_same_json(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same_json, left, right))
    return bool(left == right)
