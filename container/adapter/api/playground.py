"""The playground: one page from which a person asks the endpoint, under a policy that lets it do nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.responses import HTMLResponse, Response

_PAGE = Path(__file__).with_name("playground.html")
_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def playground() -> Callable[[], Awaitable[Response]]:
    """A handler that answers with the page, which holds nothing that a key would have to guard."""
    page = _PAGE.read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": _policy(page),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def handler() -> Response:
        return HTMLResponse(page, headers=headers)

    return handler


def _policy(page: str) -> str:
    """The page's own style and script, by hash, may run and ask its own origin; text cannot become markup.

    Content Security Policy level 3 and Trusted Types, https://www.w3.org/TR/CSP3/ and .../trusted-types/.
    """
    hashes = {
        kind: base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        for kind, content in _INLINE.findall(page)
    }
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'sha256-{hashes['script']}'",
            f"style-src 'sha256-{hashes['style']}'",
            "img-src data:",  # its icon
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )
