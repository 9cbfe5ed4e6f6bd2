"""What a request leaves behind: its id in the answer, a count in the metrics and one JSON line in the log."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.api.emf import EmbeddedMetrics
from adapter.api.metrics import Metrics
from adapter.api.record import Record

_TYPESAFE_PATHS = ("/v1/systemone", "/v1/models")
_OTHER_PATH = "other"  # a path that is not ours is the caller's text, and there is no end of them

_log = logging.getLogger("adapter.requests")


def write_log_to_stdout() -> None:
    """Write the request log to standard output, where containers' logs are collected: nothing but JSON lines."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.handlers = [handler]
    _log.propagate = False
    _log.setLevel(logging.INFO)


def write_line(line: str) -> None:
    """Write a line of JSON to the request log."""
    _log.info(line)


class Telemetry:
    """ASGI middleware around all routes."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, embedded: EmbeddedMetrics | None, paths: Collection[str]
    ) -> None:
        """`paths` are those that are told apart; all others are counted as one."""
        self._app = app
        self._metrics = metrics
        self._embedded = embedded
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event; what is not an HTTP request passes untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record()
        scope.setdefault("state", {})["record"] = record
        path = scope["path"] if scope["path"] in self._paths else _OTHER_PATH
        status = 500  # unless the application says otherwise

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.id
                if path in _TYPESAFE_PATHS:
                    headers["x-typesafe-request-id"] = record.id
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._metrics.count_request(path, status)
            if (path, status) != ("/ping", 200):  # SageMaker asks every few seconds
                write_line(_line(record, path, status, time.perf_counter() - started))
            if self._embedded is not None:
                self._embedded.observe(record, path, status)


def _line(record: Record, path: str, status: int, seconds: float) -> str:
    entry = {
        "request_id": record.id,
        "path": path,
        "kind": record.kind,
        "status": status,
        "milliseconds": round(1000 * seconds, 1),
        "decisions": len(record.masses),
        "tokens_evaluated": record.tokens_evaluated,
        "tokens_reused": record.tokens_reused,
        "tokens_generated": record.tokens_generated,
        "allowed_token_mass": round(sum(record.masses) / len(record.masses), 6) if record.masses else None,
    }
    return json.dumps(entry)
