"""Errors as callers see them: one JSON sentence, and whether a retry can help."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse


class ApiError(Exception):
    """An answer other than 200. `retry_after` in seconds makes it retryable."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


def error_response(status: int, message: str, *, retry_after: int | None = None) -> JSONResponse:
    """`{"error": ..., "retryable": ...}`, with `Retry-After` where a retry can help."""
    body: dict[str, Any] = {"error": message, "retryable": retry_after is not None}
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse(body, status_code=status, headers=headers)
