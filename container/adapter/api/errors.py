"""Errors as callers see them: a status, one sentence, and whether a retry can help."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from adapter.calibrations import CalibrationError
from adapter.context import EngineError
from adapter.prompt import PromptError
from adapter.result import closed
from adapter.scheduler import Busy
from adapter.service import TooLarge
from adapter.slots import SlotError

_MOST_FAULTS = 20  # told of one body; who has more reads no further
_LONGEST_TEXT = 400  # characters; what a caller sent is quoted, not sent back
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")

# pydantic's own sentences name the classes of this program.
_NOT_AN_OBJECT = dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "Input should be an object")

INVALID_API_KEY = "invalid_api_key"
UNKNOWN_MODEL = "unknown_model"
TOO_LONG = "context_length_exceeded"
BUSY = "busy"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a body; `kind` is pydantic's name for it."""

    where: tuple[str | int, ...]
    message: str
    kind: str = "value_error"


class ApiError(Exception):
    """An answer other than 200; each API writes it in its own shape.

    `retry_after` in seconds makes it retryable, `code` names a cause that some API tells apart, and `faults` say where
    in the body something is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after: int | None = None,
        code: str | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(_one_line(message))
        self.status = status
        self.retry_after = retry_after
        self.code = code
        self.faults = tuple(
            Fault(
                tuple(_short(step) if isinstance(step, str) else step for step in fault.where),
                _one_line(fault.message),
                fault.kind,
            )
            for fault in faults
        )


def _short(text: str) -> str:
    """A text, or the beginning and the end of a long one."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]} … {text[-half:]}"


def _one_line(text: str) -> str:
    return _UNPRINTABLE.sub(lambda found: repr(found.group())[1:-1], _short(text))


def invalid(faults: Sequence[Fault]) -> ApiError:
    """A 400 for a body of the wrong shape; its sentence tells the first of `faults`."""
    first, *others = faults
    place = ".".join(map(str, first.where))
    sentence = f"{place}: {first.message}" if place else first.message
    return ApiError(400, sentence + (f" (and {len(others)} more)" if others else ""), faults=faults[:_MOST_FAULTS])


def faults_of(error: ValidationError) -> list[Fault]:
    """Where pydantic found what."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [
        Fault(tuple(fault["loc"]), _NOT_AN_OBJECT.get(fault["type"], fault["msg"]), fault["type"]) for fault in found
    ]


# What the rest of the adapter raises, each of which `as_api_error` knows.
DOMAIN_ERRORS: tuple[type[Exception], ...] = (
    Busy,
    TooLarge,
    CalibrationError,
    SlotError,
    PromptError,
    EngineError,
)


def as_api_error(error: Exception) -> ApiError:
    """What a caller is told of one of `DOMAIN_ERRORS`, and of anything else: that it is the server's fault."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Busy):
        return ApiError(503, f"busy: {error}", retry_after=error.retry_after, code=BUSY)
    if isinstance(error, TooLarge):
        return ApiError(413, str(error), code=TOO_LONG)
    if isinstance(error, CalibrationError | SlotError | PromptError):
        return ApiError(400, str(error))
    if isinstance(error, EngineError):
        return ApiError(500, str(error))
    return ApiError(500, "the server failed; its log says why")


@closed
class Error(TypedDict):
    """Any error: one sentence, and whether the same request may succeed later."""

    error: str
    retryable: bool


def error_response(error: ApiError) -> JSONResponse:
    """The shape of `/invocations` and of every path that has none of its own: `{"error": ..., "retryable": ...}`."""
    body: Error = {"error": str(error), "retryable": error.retry_after is not None}
    return JSONResponse(body, status_code=error.status)
