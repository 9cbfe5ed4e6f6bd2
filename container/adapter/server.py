"""How the process that serves HTTP ends, in order or because the engine is broken, and how long connections wait."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from adapter.service import DecisionService

# SageMaker kills a container 30 s after SIGTERM: 25 for what was accepted, then 3 to write the last answers.
_DRAIN_SECONDS = 25
_LAST_ANSWERS_SECONDS = 3
_FAULT_SECONDS = 5  # that /ping tells of a broken engine before the process ends; a fault that passes is none
_RESTART_SECONDS = 30  # after which to come back to the process that the platform starts instead
_HEAD_SECONDS = 20  # for the head of a request, and for what comes after an answer that nobody waited to send
_KEEP_ALIVE_SECONDS = 75  # longer than load balancers keep idle connections, so that none is closed under a request
_ENGINE_FAULT = 70  # exit status: EX_SOFTWARE of sysexits.h


class Server(uvicorn.Server):
    """uvicorn, which would close its socket at SIGTERM: this one goes on answering until what was accepted is done."""

    def __init__(self, app: FastAPI, service: DecisionService, *, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=_Connection,
                access_log=False,
                log_level="warning",
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
            )
        )
        self._service = service
        self._drain_until: float | None = None  # on time.monotonic's clock
        self._owed: set[asyncio.Task[None]] = set()  # requests that had begun before the drain
        self._faulty_ticks = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Begin to drain; a second Ctrl-C ends at once."""
        if self._drain_until is None:
            self._service.drain()
            self._drain_until = time.monotonic() + _DRAIN_SECONDS
            self._owed = set(self.server_state.tasks)
            # Callers shall not send their next request here: from now on, and in what uvicorn makes anew each second.
            self.config.encoded_headers = [*self.config.encoded_headers, CLOSE_HEADER]
            self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        elif sig == signal.SIGINT:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; true where it shall close."""
        await self._end_where_the_engine_is_broken()
        leaving = await super().on_tick(counter)
        if self._drain_until is None:
            return leaving
        if time.monotonic() > self._drain_until:
            self._service.abandon("shutting down", 1)
            return True
        return leaving or self._owed.isdisjoint(self.server_state.tasks)

    async def _end_where_the_engine_is_broken(self) -> None:
        fault = self._service.fault()
        # Counted, not timed: after a pause of the whole machine the engine must have its chance to run, too.
        self._faulty_ticks = 0 if fault is None else self._faulty_ticks + 1
        if self._faulty_ticks < _FAULT_SECONDS * 10:
            return
        self._service.abandon(f"{fault}; the process ends", _RESTART_SECONDS)
        await asyncio.sleep(1)  # for these answers to be sent
        print(f"adapter: {fault}; the process ends, so that the platform starts another", file=sys.stderr, flush=True)
        os._exit(_ENGINE_FAULT)  # a thread that is stuck inside llama.cpp cannot be joined


class _Connection(H11Protocol):
    """A connection that is closed where the head of a request takes too long to arrive."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Called by asyncio."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
