"""A request's body: bounded while it is read, and parsed as JSON that means one thing only."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from adapter.api.errors import ApiError

_MAX_DEPTH = 64  # levels of nesting; a state that needs more is not evidence that a model can read


async def read_json(request: Request, max_bytes: int) -> Any:
    """The body's JSON value.

    Raises `ApiError`: 415 for another content type, 413 over `max_bytes`, 400 for what is not JSON or is ambiguous
    (duplicate keys, NaN, Infinity) or cannot be written as UTF-8 (lone surrogates).
    """
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(415, f"content type {content_type!r} is not supported; send application/json")
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > max_bytes:
            raise ApiError(413, f"the body is longer than the {max_bytes} bytes allowed (SEMIF_MAX_BODY_BYTES)")
    return parse_json(bytes(chunks))


def parse_json(data: bytes) -> Any:
    """Parse strictly; raises `ApiError` 400 as `read_json` says."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
        _check(value, 0)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise ApiError(400, f"the body is nested more than {_MAX_DEPTH} levels deep") from error
    except ValueError as error:  # Python's limit on the digits of an integer
        raise ApiError(400, f"the body holds a number that cannot be read: {error}") from error
    return value


def _refuse_constant(name: str) -> Any:
    raise ApiError(400, f"the body holds {name}, which is not JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ApiError(400, f"the body holds the key {twice!r} twice in one object")
    return value


def _check(value: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ApiError(400, f"the body is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise ApiError(400, "the body holds half of a surrogate pair, which is not text")
    elif isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            raise ApiError(400, "the body holds a number too large for a double")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check(key, depth + 1)
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)
