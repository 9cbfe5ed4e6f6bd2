"""A request's body: bounded while it is read and unpacked, and parsed as JSON that means one thing only."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections import Counter
from typing import Any

import zstandard
from starlette.requests import Request

from adapter.api.errors import ApiError, Fault

_MAX_DEPTH = 64  # levels of nesting; a state that needs more is not evidence that a model can read
_MOST_VALUES = 200_000  # and keys: more than the tokens of any prompt, and few enough to tell all that is wrong quickly
_MAX_ZSTD_WINDOW = 8 * 1024 * 1024  # bytes; RFC 9659: what an HTTP recipient must support, and a sender may use
_PIECE = 64 * 1024  # bytes unpacked at a time
_BODY_SECONDS = 20  # shorter than the drain after SIGTERM (adapter.server), so that nobody's body outlasts it


async def read_json(request: Request, max_bytes: int) -> Any:
    """The body's JSON value.

    Raises `ApiError`: 415 for another content type or encoding, 413 over `max_bytes` (packed or unpacked), 408 where
    the body takes more than 20 s to arrive, 400 for what is not JSON or is ambiguous (duplicate keys, NaN, Infinity) or
    cannot be written as UTF-8 (lone surrogates). Raises `ClientDisconnect` where the caller leaves before its end.
    """
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(415, f"content type {content_type!r} is not supported; send application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "zstd"):
        raise ApiError(415, f"content encoding {encoding!r} is not supported; send the body as it is, or as zstd")
    try:
        data = await asyncio.wait_for(_collect(request, max_bytes), _BODY_SECONDS)
    except asyncio.TimeoutError as error:
        raise ApiError(408, f"the body took more than {_BODY_SECONDS} s to arrive", retry_after=1) from error
    # Beside the event loop: a body of megabytes takes long enough to make /ping late.
    return await asyncio.to_thread(_decode, data, max_bytes if encoding == "zstd" else None)


async def _collect(request: Request, max_bytes: int) -> bytes:
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > max_bytes:
            raise _too_long(max_bytes)
    return bytes(chunks)


def _decode(data: bytes, max_unpacked: int | None) -> Any:
    return parse_json(data if max_unpacked is None else unpack_zstd(data, max_unpacked))


def unpack_zstd(data: bytes, max_bytes: int) -> bytes:
    """The bytes that `data` was packed from, read piece by piece: a bomb costs no more than `max_bytes`.

    Raises `ApiError` 413 where they are more, and 400 where `data` is not zstd.
    """
    unpacked = bytearray()
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    try:
        with decompressor.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            while piece := reader.read(_PIECE):
                unpacked += piece
                if len(unpacked) > max_bytes:
                    raise _too_long(max_bytes)
    except zstandard.ZstdError as error:
        raise _bad(f"the body is not zstd, or needs a window of more than {_MAX_ZSTD_WINDOW} bytes") from error
    return bytes(unpacked)


def _too_long(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is longer than the {max_bytes} bytes allowed (SEMIF_MAX_BODY_BYTES)")


def _bad(message: str) -> ApiError:
    return ApiError(400, message, faults=[Fault((), message, "json_invalid")])


def parse_json(data: bytes) -> Any:
    """Parse strictly; raises `ApiError` 400 as `read_json` says."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
        if _check(value, 0) > _MOST_VALUES:
            raise ApiError(413, f"the body holds more than the {_MOST_VALUES} values and keys allowed")
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise _bad(f"the body is nested more than {_MAX_DEPTH} levels deep") from error
    except ValueError as error:  # Python's limit on the digits of an integer
        raise _bad(f"the body holds a number of more than {sys.get_int_max_str_digits()} digits") from error
    return value


def _refuse_constant(name: str) -> Any:
    raise _bad(f"the body holds {name}, which is not JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise _bad(f"the body holds the key {twice!r} twice in one object")
    return value


def _check(value: Any, depth: int) -> int:
    """How many values and keys there are; raises `ApiError` for what is too deep or no text or number."""
    if depth > _MAX_DEPTH:
        raise _bad(f"the body is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise _bad("the body holds half of a surrogate pair, which is not text")
    elif isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            raise _bad("the body holds a number too large for a double")
    elif isinstance(value, dict):
        return 1 + sum(_check(key, depth + 1) + _check(item, depth + 1) for key, item in value.items())
    elif isinstance(value, list):
        return 1 + sum(_check(item, depth + 1) for item in value)
    return 1
