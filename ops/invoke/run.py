"""Asks many rows, several at a time, until all are asked, nobody can be reached, or somebody presses Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from ops.client import DecisionError, Outcome, UnreachableError
from ops.errors import OpsError, UsageError
from ops.invoke.rows import Row
from ops.output import note

Answer = tuple[Outcome, Mapping[str, Any]]


class Stop:
    """Whether to ask no more, and why: `unreachable`, or else an interruption."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.unreachable: UnreachableError | None = None

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Ask no more."""
        self._event.set()

    def sleep(self, seconds: float) -> None:
        """Wait before a request is repeated. Raises StoppedError where it is not to be."""
        if self._event.wait(seconds):
            raise StoppedError("stopped before it was answered")


class StoppedError(OpsError):
    """The row was not asked to the end."""


def ask_all(
    rows: Sequence[Row], decide: Callable[[Mapping[str, Any]], dict[str, Any]], stop: Stop, *, concurrency: int
) -> Iterator[tuple[Row, Answer | OpsError]]:
    """Every row that is asked, as it ends: with its answer, or a DecisionError or UsageError.

    Rows that are missing here were not asked, or not to the end, because of `stop`.
    """
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="decision")
    waiting, running = iter(rows), dict[Future[Answer], Row]()
    try:
        while True:
            while not stop and len(running) < concurrency and (row := next(waiting, None)) is not None:
                running[pool.submit(ask_one, row, decide)] = row
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                row = running.pop(done)
                try:
                    yield row, done.result()
                except StoppedError:
                    continue
                except (DecisionError, UsageError) as error:
                    if isinstance(error, UnreachableError):
                        stop.unreachable = stop.unreachable or error
                        stop.set()
                    yield row, error
    finally:
        stop.set()
        pool.shutdown(wait=False)


def ask_one(row: Row, decide: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Answer:
    """Ask one row. Raises DecisionError and UsageError."""
    result = decide(row.decision)
    try:
        return row.policy.outcome(result), result
    except (KeyError, TypeError, ValueError) as error:
        raise DecisionError("what answers is no decision endpoint: its result has no options' probabilities") from error


@contextmanager
def interruptible(stop: Stop) -> Iterator[None]:
    """Ctrl-C asks no more and lets the requests that are out end; a second one raises KeyboardInterrupt.

    A handler instead of the exception, which could come in the middle of a line that is being written.
    """

    def on_interrupt(_number: int, _frame: object) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.set()
        note("stopping: what is asked already is waited for")

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
