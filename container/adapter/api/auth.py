"""The bearer key that callers must send where one is configured."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from fastapi import Request
from pydantic import SecretStr

from adapter.api.errors import INVALID_API_KEY, ApiError


def bearer_check(key: SecretStr | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency that raises `ApiError` 401 for a request without the key; without a key it lets all pass."""
    expected = None if key is None else key.get_secret_value().encode()

    async def check(request: Request) -> None:
        if expected is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise ApiError(401, "an API key is needed: send it as 'Authorization: Bearer KEY'", code=INVALID_API_KEY)
        if not hmac.compare_digest(given.strip().encode(), expected):
            raise ApiError(401, "the API key is not the one configured here (SEMIF_API_KEY)", code=INVALID_API_KEY)

    return check
