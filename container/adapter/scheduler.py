"""Who is evaluated when: the queue in front of the engine, its one thread, admission, deadlines and cancellation."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from adapter.busy import Busy
from adapter.chats import Chat, Chats
from adapter.engine import Cancelled, Engine, Evaluation, TokenRun

__all__ = ["Busy", "Job", "Scheduler"]

_SMOOTHING = 0.2  # weight of the newest measurement in the running speed
_ANSWER_SHARE = 0.05  # of the deadline, left to write the answer and to send it
_MOST_ANSWER_SECONDS = 2
_ABORT_SECONDS = 10  # within which an evaluation ends that was told to; llama.cpp asks between the nodes of its graph
_CHAT_SHARE = 0.25  # seconds that chats are granted for each second of decisions, while both wait
_RESTART_SECONDS = 30  # after which to come back where the engine is broken and the platform starts another


@dataclass(eq=False)
class Job:
    """The prompts of one request, and what became of them. Only the scheduler changes it."""

    runs: Sequence[TokenRun]
    costs: list[int]  # tokens that each is expected to cost
    deadline: float  # on time.monotonic's clock
    future: Future[list[Evaluation]] = field(default_factory=Future)
    results: dict[int, Evaluation] = field(default_factory=dict)  # by index into runs
    waiting: deque[int] = field(default_factory=deque)  # indices into runs
    cancelled: bool = False

    @property
    def remaining(self) -> int:
        """Tokens not yet evaluated."""
        return sum(self.costs[index] for index in range(len(self.runs)) if index not in self.results)


class Scheduler:
    """Owns the engine: one thread evaluates what the queue holds, a prompt of each request in turn.

    Work is accepted only if, at the speed measured so far, everything accepted ends within every deadline. Everything
    is accounted in tokens that the engine has not seen. Chats fill the gaps between decisions, in short steps.
    """

    def __init__(
        self, engine: Engine, *, max_in_flight: int, deadline_seconds: float, chats: Chats | None = None
    ) -> None:
        """`max_in_flight` bounds prompts that wait or run; a request ends within `deadline_seconds` of its arrival."""
        self._engine = engine
        self._max_in_flight = max_in_flight
        self._deadline = deadline_seconds - min(_ANSWER_SHARE * deadline_seconds, _MOST_ANSWER_SECONDS)
        self._chats = chats
        self._granted = 0.0  # seconds that chats may take before the next decision; negative where they took too many
        self._jobs: deque[Job] = deque()  # accepted and not finished, whose turn it is first
        self._running: list[tuple[Job, int]] = []
        self._changed = threading.Condition()
        self._draining = False
        self._closing = False
        self._tokens_per_second = engine.tokens_per_second  # smoothed from here on; 0 is unknown
        self._must_end: float | None = None  # when what runs is told to end, on time.monotonic's clock
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def check_room(self, prompts: int, arrived: float) -> None:
        """Raise `Busy` where so many prompts would be refused however short: before they are made, which costs more."""
        with self._changed:
            self._check_open()
            if self._jobs:
                self._admit(prompts, 0, arrived + self._deadline)

    def submit(self, runs: Sequence[TokenRun], arrived: float | None = None) -> Job:
        """Queue the prompts of one request; the job's future yields one `Evaluation` for each, in order.

        `arrived` is on time.monotonic's clock, now if None. Raises `Busy` where they cannot be finished in time.
        """
        costs = self._engine.novel_tokens(runs)
        with self._changed:
            self._check_open()
            deadline = (time.monotonic() if arrived is None else arrived) + self._deadline
            if self._jobs:  # an idle engine is the best offer there is, however long the prompt
                self._admit(len(runs), sum(costs), deadline)
            job = Job(runs, costs, deadline, waiting=deque(range(len(runs))))
            self._jobs.append(job)
            self._changed.notify()
        return job

    def submit_chat(self, chat: Chat) -> None:
        """Queue a chat. Raises `Busy` where it cannot be answered."""
        if self._chats is None:
            raise Busy("no chats are answered here", _RESTART_SECONDS)
        with self._changed:
            self._check_open()
            self._chats.add(chat)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a job whose caller has left, also while it runs."""
        with self._changed:
            job.cancelled = True
            if job in self._jobs:
                self._jobs.remove(job)
            if any(running is job for running, _ in self._running):
                self._engine.abort()

    @property
    def depth(self) -> int:
        """Prompts waiting or running."""
        with self._changed:
            return sum(len(job.runs) - len(job.results) for job in self._jobs)

    @property
    def chats_in_flight(self) -> int:
        """Chats that wait or generate."""
        return 0 if self._chats is None else len(self._chats)

    def fault(self) -> str | None:
        """Why the engine cannot decide at present; None while it can.

        Stuck is what does not end within 10 s of being told to, which is at the deadline of what it evaluates.
        """
        if not self._thread.is_alive():
            return "the engine has stopped"
        must_end = self._must_end
        if must_end is not None and time.monotonic() - must_end > _ABORT_SECONDS:
            return f"the engine is stuck: it was told to end {time.monotonic() - must_end:.0f} s ago"
        return None

    @property
    def draining(self) -> bool:
        """Whether nothing more is accepted because the process is about to end."""
        return self._draining

    def drain(self) -> None:
        """Accept nothing more; what was accepted is still answered. May be called from a signal handler."""
        self._draining = True

    def abandon(self, reason: str, retry_after: float) -> None:
        """Give up everything that was accepted: its callers are told `Busy`, and what runs is aborted."""
        with self._changed:
            jobs = list(self._jobs)
            self._engine.abort()
        for job in jobs:
            self._finish(job, Busy(reason, retry_after))
        if self._chats:
            self._chats.abandon(Busy(reason, retry_after))

    def close(self) -> None:
        """Finish what was accepted, then stop the engine's thread."""
        with self._changed:
            self._draining = self._closing = True
            self._changed.notify()
        self._thread.join()

    def _check_open(self) -> None:
        if self._draining:
            raise Busy("shutting down", 1)
        if (fault := self.fault()) is not None:
            raise Busy(fault, _RESTART_SECONDS)

    def _admit(self, prompts: int, tokens: int, deadline: float) -> None:
        """Raise `Busy` unless these and all before them end in time, in whatever order they are served."""
        slower = 1 + _CHAT_SHARE if self._chats else 1
        backlog = self._seconds(self._remaining()) * slower
        if sum(len(other.runs) - len(other.results) for other in self._jobs) + prompts > self._max_in_flight:
            raise Busy(f"{self._max_in_flight} decisions are waiting already", backlog)
        needed = backlog + self._seconds(tokens) * slower
        slack = min(deadline, *(other.deadline for other in self._jobs)) - time.monotonic()
        if needed > slack:
            raise Busy(
                f"all that is accepted would take {needed:.0f} s, and only {max(0, slack):.0f} s are left for it",
                min(needed - slack, backlog),
            )

    def _remaining(self) -> int:
        return sum(job.remaining for job in self._jobs)

    def _seconds(self, tokens: int) -> float:
        return tokens / self._tokens_per_second if self._tokens_per_second else 0.0

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            if not group:
                self._granted = 0
                self._step_chat()
                continue
            started = time.monotonic()
            self._evaluate(group)
            # What chats were granted and did not take is not kept for them; what they took too much is.
            self._granted = min(self._granted, 0) + _CHAT_SHARE * (time.monotonic() - started)
            while self._chat_may_go_first():
                self._step_chat()

    def _chat_may_go_first(self) -> bool:
        """Whether a chat may do a step though decisions wait: out of what it is granted, and if none gets late."""
        with self._changed:
            self._running = []
            if not self._chats or not self._jobs or self._granted <= 0:
                return False
            slack = min(job.deadline for job in self._jobs) - time.monotonic()
            return self._seconds(self._remaining()) + self._chats.step_seconds < slack

    def _step_chat(self) -> None:
        if self._chats is None:
            return
        started = time.monotonic()
        self._must_end = started + self._deadline
        self._chats.step()
        self._must_end = None
        self._granted -= time.monotonic() - started

    def _next_group(self) -> list[tuple[Job, int]] | None:
        """Prompts to be evaluated at once, one of each job in turn.

        Empty when there is nothing to do but chats, None when it is time to stop.
        """
        with self._changed:
            self._running = []
            while True:
                self._drop_late(time.monotonic())
                if any(job.waiting for job in self._jobs):
                    break
                if self._chats:
                    return []
                if self._closing:
                    return None
                self._changed.wait()
            while len(self._running) < self._engine.group_size and any(job.waiting for job in self._jobs):
                job = self._jobs[0]
                if job.waiting:
                    self._running.append((job, job.waiting.popleft()))
                self._jobs.rotate(-1)
            return list(self._running)

    def _drop_late(self, now: float) -> None:
        """Give up what is late, and what must become late while others could still end in time."""
        alone = len(self._jobs) == 1
        for job in [job for job in self._jobs if job.deadline < now + (0 if alone else self._seconds(job.remaining))]:
            self._finish(job, Busy("the work took longer than predicted", 1))
        if self._chats:
            self._chats.drop()

    def _evaluate(self, group: Sequence[tuple[Job, int]]) -> None:
        started = time.monotonic()
        # An answer past its deadline helps nobody: the prompt is given up in the middle.
        self._must_end = min(job.deadline for job, _ in group)
        overdue = threading.Timer(self._must_end - started, self._engine.abort)
        overdue.daemon = True
        overdue.start()
        try:
            evaluations = self._engine.evaluate([job.runs[index] for job, index in group])
        except Cancelled:
            self._put_back(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it and the thread live on
            if len(group) == 1:
                self._finish(group[0][0], error)
            else:  # only one of them need be at fault
                for member in group:
                    self._evaluate([member])
        else:
            self._measure(sum(evaluation.evaluated for evaluation in evaluations), time.monotonic() - started)
            for (job, index), evaluation in zip(group, evaluations, strict=True):
                self._store(job, index, evaluation)
        finally:
            overdue.cancel()
            self._must_end = None

    def _store(self, job: Job, index: int, evaluation: Evaluation) -> None:
        job.results[index] = evaluation
        if len(job.results) == len(job.runs):
            self._finish(job, [job.results[index] for index in range(len(job.runs))])

    def _put_back(self, group: Sequence[tuple[Job, int]]) -> None:
        """After an abort: those whose callers still wait are evaluated again."""
        with self._changed:
            for job, index in reversed(group):
                if not job.cancelled and not job.future.done():
                    job.waiting.appendleft(index)

    def _finish(self, job: Job, outcome: list[Evaluation] | Exception) -> None:
        with self._changed:
            if job not in self._jobs:
                return  # the caller left, or it was given up
            self._jobs.remove(job)
        if not job.future.set_running_or_notify_cancel():
            return  # the caller is leaving
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)

    def _measure(self, tokens: int, seconds: float) -> None:
        speed, known = tokens / max(seconds, 1e-6), self._tokens_per_second
        self._tokens_per_second = known + _SMOOTHING * (speed - known) if known else speed
