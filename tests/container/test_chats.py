"""Chats beside decisions on the one engine thread: who goes first, who waits, and that no decision's bit changes."""

from __future__ import annotations

import threading
import time
from collections import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from adapter.chats import MOST_IN_FLIGHT, Chat, Chats, Finished
from adapter.conversation import ChatPrompt
from adapter.engine import Engine, Evaluation, TokenRun
from adapter.generator import Generation, Generator, Sampling
from adapter.model import Model
from adapter.scheduler import Busy, Scheduler
from adapter.vocabulary import Vocabulary
from tests.models.make_models import model_path

WAIT = 60  # seconds; generous, the machine may be busy
PROMPT = ChatPrompt(tuple(range(1000, 1200)), 190)
LONG = 100_000  # tokens; nobody waits for so many


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(model_path("tiny-hybrid"))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def vocabulary(model: Model) -> Vocabulary:
    return Vocabulary(model.pointer)


class Machine:
    """An engine and chats on one thread, what they did in which order, and a clock that only they move."""

    def __init__(self, model: Model, vocabulary: Vocabulary) -> None:
        self.order: list[str] = []
        self.now = 1000.0
        self.decision_seconds = 1.0
        self.step_seconds = 0.0625
        self.gate = threading.Event()
        self.engine = Engine(model, max_tokens=2000, threads=1)
        self.generator = Generator(model, max_tokens=2000, threads=1, alignment=8)
        self.chats = Chats(self.generator, vocabulary)
        self._evaluate, self._start = self.engine.evaluate, self.generator.start
        self.engine.evaluate = self.evaluate  # type: ignore[method-assign]
        self.generator.start = self.start  # type: ignore[method-assign]

    def monotonic(self) -> float:
        """Its time, in seconds."""
        return self.now

    def evaluate(self, runs: Sequence[TokenRun]) -> list[Evaluation]:
        """As the engine does, when the gate is open."""
        self.gate.wait(WAIT)
        self.order.append("decision")
        self.now += self.decision_seconds
        return self._evaluate(runs)

    def start(self, prompt: ChatPrompt, sampling: Sampling) -> Generation:
        """As the generator does."""
        generation = self._start(prompt, sampling)
        generation.steps = self._noted(generation.steps)
        return generation

    def _noted(self, steps: abc.Generator[int | None]) -> abc.Generator[int | None]:
        with closing(steps):
            for token in steps:
                self.order.append("chat")
                self.now += self.step_seconds
                yield token


@pytest.fixture
def machine(model: Model, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(model, vocabulary)
    for module in ("scheduler", "chats"):
        monkeypatch.setattr(f"adapter.{module}.time", SimpleNamespace(monotonic=made.monotonic))
    yield made
    made.generator.close()
    made.engine.close()


@pytest.fixture
def scheduler(machine: Machine) -> Iterator[Scheduler]:
    made = Scheduler(machine.engine, max_in_flight=1000, deadline_seconds=WAIT, chats=machine.chats)
    yield made
    machine.gate.set()
    machine.chats.abandon(Busy("the test is over", 1))
    made.close()


class Listener:
    """What a chat is told."""

    def __init__(self) -> None:
        self.events: SimpleQueue[str | Finished | Exception] = SimpleQueue()
        self.pieces: list[str] = []

    def outcome(self) -> Finished | Exception:
        """How it ended."""
        while isinstance(event := self.events.get(timeout=WAIT), str):
            self.pieces.append(event)
        return event


def chat_of(most_tokens: int, deadline: float, *, seed: int = 1) -> tuple[Chat, Listener]:
    listener = Listener()
    chat = Chat(
        PROMPT, Sampling(seed=seed), stops=(), most_tokens=most_tokens, deadline=deadline, tell=listener.events.put
    )
    return chat, listener


def runs_of(count: int) -> list[TokenRun]:
    return [TokenRun((300 + number, *range(1000, 1031))) for number in range(count)]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_chat_alone_is_not_held_up(machine: Machine, scheduler: Scheduler) -> None:
    chat, listener = chat_of(5, machine.now + WAIT)
    scheduler.submit_chat(chat)
    assert listener.outcome() == Finished("length")
    assert chat.generated == 5
    assert (chat.evaluated, chat.reused) == (200, 0)
    # 128 rows, then up to where the next turn will go on, up to the last group, and the rest with the first token.
    assert machine.order == ["chat"] * (3 + 5)


def test_while_decisions_wait_chats_get_a_fifth_of_the_time(machine: Machine, scheduler: Scheduler) -> None:
    machine.gate.set()
    scheduler.submit(runs_of(4)).future.result(WAIT)  # nothing is saved up while there is no chat
    machine.gate.clear()
    job = scheduler.submit(runs_of(8))
    _until(lambda: bool(scheduler._running))
    chat, _ = chat_of(LONG, machine.now + 1000)
    scheduler.submit_chat(chat)
    machine.gate.set()
    job.future.result(WAIT)
    until_done = machine.order[: _index_of_last(machine.order, "decision") + 1]
    # A quarter of each decision's second: four steps of a sixteenth.
    assert [len(list(steps)) for kind, steps in groupby(until_done) if kind == "chat"] == [4] * 7


def test_a_long_step_is_paid_back_before_the_next(machine: Machine, scheduler: Scheduler) -> None:
    machine.step_seconds = 0.625
    job = scheduler.submit(runs_of(8))
    _until(lambda: bool(scheduler._running))
    scheduler.submit_chat(chat_of(LONG, machine.now + 1000)[0])
    machine.gate.set()
    job.future.result(WAIT)
    until_done = machine.order[: _index_of_last(machine.order, "decision") + 1]
    # Behind the first, 0.25 - 0.625 are granted: -0.125 and 0.125 behind the next two, -0.25, 0 and 0.25 then.
    assert "".join(kind[0] for kind in until_done) == "dcddcdddcdd"


def test_a_chat_makes_no_accepted_decision_late(machine: Machine, scheduler: Scheduler) -> None:
    machine.step_seconds = 0.125
    scheduler._tokens_per_second = 32.0  # a decision is 32 rows
    machine.gate.set()
    scheduler.submit(runs_of(1)).future.result(WAIT)
    machine.gate.clear()
    job = scheduler.submit(runs_of(8))
    _until(lambda: bool(scheduler._running))
    machine.chats.step_seconds = 0.125
    job.deadline = machine.now + 8.3  # room for two steps
    scheduler.submit_chat(chat_of(LONG, machine.now + 1000)[0])
    machine.order.clear()
    machine.gate.set()
    assert len(job.future.result(WAIT)) == 8
    until_done = machine.order[: _index_of_last(machine.order, "decision") + 1]
    assert until_done.count("chat") == 2


def test_decisions_are_admitted_by_the_speed_that_chats_leave_them(machine: Machine, scheduler: Scheduler) -> None:
    machine.gate.set()
    scheduler.submit(runs_of(1)).future.result(WAIT)
    machine.gate.clear()
    scheduler._tokens_per_second = 16.0  # a decision of 32 rows takes 2 s: 30 fit into 60 s, with a chat 24
    waiting = scheduler.submit(runs_of(25)[1:])
    _until(lambda: bool(scheduler._running))
    chat, _ = chat_of(LONG, machine.now + 1000)
    scheduler.submit_chat(chat)
    with pytest.raises(Busy, match="would take 62 s"):
        scheduler.submit([TokenRun((1, *range(5000, 5031)))])
    machine.chats._end(chat, Finished("stop"))
    scheduler.submit([TokenRun((1, *range(5000, 5031)))])
    machine.gate.set()
    waiting.future.result(WAIT)


def test_steps_of_chats_are_no_part_of_the_measured_speed(machine: Machine, scheduler: Scheduler) -> None:
    machine.step_seconds = 0.2
    machine.gate.set()
    scheduler.submit_chat(chat_of(30, machine.now + 1000)[0])
    for _ in range(4):
        scheduler.submit(runs_of(2)).future.result(WAIT)
    assert scheduler._tokens_per_second == pytest.approx(32, rel=0.3)  # 32 rows, or fewer where some are known, in 1 s


def test_no_decision_changes_by_a_bit(machine: Machine, scheduler: Scheduler) -> None:
    machine.gate.set()

    def decide() -> list[bytes]:
        machine.engine.cache.clear()
        return [evaluation.logits.tobytes() for evaluation in scheduler.submit(runs_of(6)).future.result(WAIT)]

    before = decide()
    assert machine.generator._context is None  # no memory is spent on chats before there is one
    chat, listener = chat_of(LONG, machine.now + 10_000)
    scheduler.submit_chat(chat)
    _until(lambda: chat.generated > 2)
    assert decide() == before
    during = chat.generated
    _until(lambda: chat.generated > during)
    chat.cancelled = True
    _until(lambda: len(machine.chats) == 0)
    assert decide() == before
    assert listener.events.qsize() > 0
    assert np.frombuffer(before[0], np.float32).std() > 0


def test_more_chats_than_can_wait_are_refused_with_the_time_to_wait(machine: Machine, scheduler: Scheduler) -> None:
    scheduler.submit(runs_of(1))
    _until(lambda: bool(scheduler._running))  # no chat begins
    machine.chats.step_seconds = 0.5
    chats = [chat_of(20, machine.now + 55) for _ in range(MOST_IN_FLIGHT)]
    for chat, _ in chats:
        scheduler.submit_chat(chat)
    with pytest.raises(Busy, match="4 chats are waiting") as caught:
        scheduler.submit_chat(chat_of(20, machine.now + 55)[0])
    assert caught.value.retry_after == 10  # 20 steps of half a second
    chats[3][0].cancelled = True
    another, listener = chat_of(2, machine.now + 55)
    scheduler.submit_chat(another)
    machine.gate.set()
    for _, heard in chats[:3]:
        assert heard.outcome() == Finished("length")
    assert listener.outcome() == Finished("length")
    assert chats[3][1].events.empty()
    assert chats[0][1].pieces == chats[1][1].pieces  # one prompt and seed, one answer


def test_chats_past_their_deadline_end(machine: Machine, scheduler: Scheduler) -> None:
    machine.step_seconds = 1.0
    running, heard = chat_of(LONG, machine.now + 9.5)
    waiting, refused = chat_of(LONG, machine.now + 5)
    scheduler.submit(runs_of(1))
    _until(lambda: bool(scheduler._running))
    scheduler.submit_chat(running)
    scheduler.submit_chat(waiting)
    machine.gate.set()
    outcome = refused.outcome()
    assert isinstance(outcome, Busy)
    assert "could not be answered in time" in str(outcome)
    assert heard.outcome() == Finished("length")
    assert running.generated == 6  # a second for the decision, three for the prompt, one for each token
    assert waiting.generated == 0


def test_a_failing_chat_is_told_and_the_next_is_answered(
    machine: Machine, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = machine.generator.start
    monkeypatch.setattr(machine.generator, "start", lambda *_: 1 / 0)
    chat, listener = chat_of(3, machine.now + WAIT)
    scheduler.submit_chat(chat)
    assert isinstance(listener.outcome(), ZeroDivisionError)
    monkeypatch.setattr(machine.generator, "start", start)
    chat, listener = chat_of(3, machine.now + WAIT)
    scheduler.submit_chat(chat)
    assert listener.outcome() == Finished("length")
    assert scheduler.fault() is None


def test_draining_refuses_new_chats_and_finishes_the_accepted(machine: Machine, scheduler: Scheduler) -> None:
    scheduler.submit(runs_of(1))
    _until(lambda: bool(scheduler._running))
    chat, listener = chat_of(3, machine.now + WAIT)
    scheduler.submit_chat(chat)
    scheduler.drain()
    with pytest.raises(Busy, match="shutting down"):
        scheduler.submit_chat(chat_of(3, machine.now + WAIT)[0])
    machine.gate.set()
    assert listener.outcome() == Finished("length")


def test_at_the_end_of_a_drain_chats_are_cut(machine: Machine, scheduler: Scheduler) -> None:
    machine.gate.set()
    chat, listener = chat_of(LONG, machine.now + WAIT)
    scheduler.submit_chat(chat)
    _until(lambda: chat.generated > 0)
    scheduler.drain()
    scheduler.abandon("shutting down", 1)
    outcome = listener.outcome()
    assert isinstance(outcome, Busy)
    assert str(outcome) == "shutting down"
    scheduler.close()  # comes back: nothing is left to do


def _index_of_last(order: Sequence[str], kind: str) -> int:
    return len(order) - 1 - list(reversed(order)).index(kind)
