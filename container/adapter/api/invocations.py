"""The wire shapes of `/invocations`: `decision` and `decisions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from adapter.api.errors import ApiError
from adapter.service import Decision, Option

_NonEmpty = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class OptionBody(_Strict):
    """One declared option."""

    id: _NonEmpty
    description: _NonEmpty


class DecisionBody(_Strict):
    """The wire's `D`."""

    id: _NonEmpty
    state: Any
    question: _NonEmpty
    options: Annotated[list[OptionBody], Field(min_length=2, max_length=255)]
    layout: Literal["state-first", "criteria-first"] = "state-first"
    calibration: _NonEmpty | None = None
    permutations: Annotated[int, Field(ge=1, le=8)] = 1

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


class _One(_Strict):
    decision: DecisionBody


class _Many(_Strict):
    decisions: Annotated[list[DecisionBody], Field(min_length=1)]


def parse_invocation(body: Any, max_shared: int) -> tuple[list[Decision], bool]:
    """The decisions of a body, and whether they came as a shared request.

    Raises `ApiError` 400 with one sentence that says what is wrong, where, and what is allowed.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object with the key 'decision' or 'decisions'")
    kinds = [key for key in ("decision", "decisions") if key in body]
    if len(kinds) != 1:
        found = "both" if kinds else "neither"
        raise ApiError(400, f"the body must have exactly one of the keys 'decision' and 'decisions'; it has {found}")
    try:
        if kinds == ["decision"]:
            return [_One.model_validate(body).decision.to_decision()], False
        decisions = [item.to_decision() for item in _Many.model_validate(body).decisions]
    except ValidationError as error:
        raise ApiError(400, _first_fault(error)) from error
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
    return decisions, True


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, fault["loc"]))
    more = error.error_count() - 1
    return f"{place}: {fault['msg']}" + (f" (and {more} more)" if more else "")


def _same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values in which 1, 1.0 and true differ, and so does the order of keys: the prompt shows it."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(_same_json(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same_json, left, right))
    return bool(left == right)
