"""Who is evaluated when: the queue in front of the engine, its one thread, admission and cancellation."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from adapter.engine import Cancelled, Engine, Evaluation

_SMOOTHING = 0.2  # weight of the newest measurement in the running speed


class Busy(Exception):  # noqa: N818 - an answer, not a fault
    """The work could not be finished in time and was not accepted; `retry_after` is in seconds."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = max(1, math.ceil(retry_after))


@dataclass(eq=False)
class _Job:
    """The prompts of one request, evaluated in order."""

    prompts: Sequence[Sequence[int]]
    remaining: int  # tokens not yet evaluated
    future: Future[list[Evaluation]] = field(default_factory=Future)
    cancelled: bool = False


class Scheduler:
    """Owns the engine: one thread evaluates what the queue holds, first come, first served.

    Work is accepted only if, at the speed measured so far, all that is queued before it and it itself end within the
    deadline. Everything is accounted in tokens.
    """

    def __init__(self, engine: Engine, *, max_in_flight: int, deadline_seconds: float) -> None:
        """`max_in_flight` bounds prompts waiting or running, whatever their length."""
        self._engine = engine
        self._max_in_flight = max_in_flight
        self._deadline = deadline_seconds
        self._queue: deque[_Job] = deque()
        self._running: _Job | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._tokens_per_second = 0.0  # unknown until the first evaluation
        self._running_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, prompts: Sequence[Sequence[int]]) -> _Job:
        """Queue the prompts of one request; the job's future yields one `Evaluation` for each, in order.

        Raises `Busy` where they cannot be finished in time.
        """
        tokens = sum(map(len, prompts))
        with self._changed:
            if self._closing:
                raise Busy("shutting down", 1)
            jobs = [*self._queue, *([self._running] if self._running else [])]
            waiting = self._seconds(sum(job.remaining for job in jobs))
            if jobs and sum(len(job.prompts) for job in jobs) + len(prompts) > self._max_in_flight:
                raise Busy(f"{self._max_in_flight} decisions are waiting already", waiting)
            needed = waiting + self._seconds(tokens)
            if jobs and needed > self._deadline:  # an idle engine is the best offer there is, however long the prompt
                raise Busy(
                    f"the answer would take {needed:.0f} s, more than {self._deadline:.0f} s", needed - self._deadline
                )
            job = _Job(prompts, tokens)
            self._queue.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: _Job) -> None:
        """Drop a job whose caller has left, also while it runs."""
        with self._changed:
            job.cancelled = True
            if job is self._running:
                self._engine.abort()
            elif job in self._queue:
                self._queue.remove(job)

    def fault(self) -> str | None:
        """Why the engine cannot decide at present; None while it can."""
        if not self._thread.is_alive():
            return "the engine has stopped"
        since = self._running_since
        if since is not None and time.monotonic() - since > 2 * self._deadline:
            return f"the engine has not finished a decision for {time.monotonic() - since:.0f} s"
        return None

    def close(self) -> None:
        """Finish what was accepted, then stop the engine's thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _seconds(self, tokens: int) -> float:
        return tokens / self._tokens_per_second if self._tokens_per_second else 0.0

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue  # the caller left while it waited
            try:
                job.future.set_result([self._evaluate(job, tokens) for tokens in job.prompts])
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it and the thread live on
                job.future.set_exception(error)

    def _next(self) -> _Job | None:
        with self._changed:
            self._running = None
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            self._running = self._queue.popleft()
            return self._running

    def _evaluate(self, job: _Job, tokens: Sequence[int]) -> Evaluation:
        if job.cancelled:
            raise Cancelled
        self._running_since = time.monotonic()
        try:
            evaluation = self._engine.evaluate(tokens)
        finally:
            self._running_since = None
        job.remaining -= len(tokens)
        measured = evaluation.evaluated / evaluation.seconds
        known = self._tokens_per_second
        self._tokens_per_second = known + _SMOOTHING * (measured - known) if known else measured
        return evaluation
