"""The queue in front of the engine: turns, admission, deadlines, cancellation, and that no answer goes astray."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adapter.engine import Engine, Evaluation, TokenRun
from adapter.model import Model
from adapter.scheduler import Busy, Job, Scheduler
from tests.models.make_models import model_path

WAIT = 60  # seconds; generous, the machine may be busy


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(model_path("tiny-hybrid"))
    yield loaded
    loaded.close()


@pytest.fixture(params=[1, 3], ids=["one-by-one", "grouped"])
def engine(model: Model, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(model, max_tokens=2000, threads=1, streams=request.param)
    yield made
    made.close()


class Gate(Engine):
    """An engine that notes what it evaluates, and waits at a gate before it does."""

    def __init__(self, model: Model) -> None:
        super().__init__(model, max_tokens=2000, threads=1)
        self.gate = threading.Event()
        self.seen: list[int] = []

    def evaluate(self, runs: Sequence[TokenRun]) -> list[Evaluation]:
        """Evaluate when the gate is open."""
        self.gate.wait(WAIT)
        self.seen += [run.tokens[0] for run in runs]
        return super().evaluate(runs)


@pytest.fixture
def gate(model: Model) -> Iterator[Gate]:
    made = Gate(model)
    yield made
    made.close()


def run_of(mark: int, length: int = 20) -> TokenRun:
    return TokenRun((mark, *range(1000, 1000 + length - 1)))


def await_running(scheduler: Scheduler) -> None:
    deadline = time.monotonic() + WAIT
    while not scheduler._running and time.monotonic() < deadline:
        time.sleep(0.005)


def test_every_answer_reaches_its_own_request(engine: Engine) -> None:
    runs = [run_of(300 + number, 10 + number % 40) for number in range(60)]
    expected = [engine.evaluate([run])[0].logits for run in runs]
    scheduler = Scheduler(engine, max_in_flight=1000, deadline_seconds=WAIT)
    try:
        with ThreadPoolExecutor(16) as callers:
            requests = [list(range(start, min(start + 1 + start % 4, 60))) for start in range(60)]
            jobs = list(callers.map(lambda request: scheduler.submit([runs[index] for index in request]), requests))
        for request, job in zip(requests, jobs, strict=True):
            for index, evaluation in zip(request, job.future.result(WAIT), strict=True):
                assert np.array_equal(evaluation.logits, expected[index])
    finally:
        scheduler.close()


def test_a_large_request_does_not_hold_up_a_small_one(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=1000, deadline_seconds=WAIT)
    large = scheduler.submit([run_of(1) for _ in range(64)])
    await_running(scheduler)
    small = scheduler.submit([run_of(2)])
    gate.gate.set()
    small.future.result(WAIT)
    large.future.result(WAIT)
    scheduler.close()
    assert gate.seen.index(2) <= 2
    assert len(gate.seen) == 65


def test_what_would_be_late_is_refused_with_the_time_to_wait(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=1000, deadline_seconds=10)
    scheduler._tokens_per_second = 100
    accepted = scheduler.submit([run_of(1, 900)])  # 9 s
    with pytest.raises(Busy) as caught:
        scheduler.submit([run_of(2, 400)])
    assert 2 <= caught.value.retry_after <= 5  # 9 + 4 s of work, 10 s of time
    scheduler.submit([run_of(3, 16)])
    gate.gate.set()
    accepted.future.result(WAIT)
    scheduler.close()


def test_time_counts_from_the_arrival(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=1000, deadline_seconds=WAIT)
    scheduler._tokens_per_second = 100
    accepted = scheduler.submit([run_of(1)])
    with pytest.raises(Busy):
        scheduler.submit([run_of(2, 400)], arrived=time.monotonic() - WAIT + 4)  # 4 s of work, and less time
    gate.gate.set()
    accepted.future.result(WAIT)
    scheduler.close()


def test_the_speed_is_known_from_the_start(gate: Gate) -> None:
    gate.tokens_per_second = 100  # of what was evaluated before there was a scheduler
    scheduler = Scheduler(gate, max_in_flight=1000, deadline_seconds=10)
    accepted = scheduler.submit([run_of(1, 900)])
    with pytest.raises(Busy):
        scheduler.submit([run_of(2, 400)])
    gate.gate.set()
    accepted.future.result(WAIT)
    scheduler.close()


def test_an_engine_knows_its_speed(model: Model) -> None:
    engine = Engine(model, max_tokens=100, threads=1)
    assert engine.tokens_per_second == 0
    (evaluation,) = engine.evaluate([run_of(1)])
    assert engine.tokens_per_second == pytest.approx(evaluation.evaluated / evaluation.seconds)
    engine.close()


def test_what_cannot_be_accepted_is_known_before_its_prompts_are(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=2, deadline_seconds=10)
    scheduler._tokens_per_second = 100
    scheduler.check_room(3, time.monotonic())  # idle: whatever comes is accepted
    accepted = scheduler.submit([run_of(1, 600)])
    scheduler.check_room(1, time.monotonic())
    with pytest.raises(Busy, match="2 decisions are waiting"):
        scheduler.check_room(2, time.monotonic())
    with pytest.raises(Busy, match="would take 6 s"):
        scheduler.check_room(1, time.monotonic() - 5)
    gate.gate.set()
    accepted.future.result(WAIT)
    scheduler.close()


def test_what_must_become_late_makes_room_for_those_who_need_not(gate: Gate) -> None:
    gate.group_size = 1
    scheduler = Scheduler(gate, max_in_flight=1000, deadline_seconds=WAIT)
    scheduler._tokens_per_second = 1e6
    first, long, short = (scheduler.submit([run]) for run in (run_of(1), run_of(2, 1900), run_of(3)))
    await_running(scheduler)
    scheduler._measure = lambda *_: None  # type: ignore[method-assign] # the machine has become slow, and stays so
    scheduler._tokens_per_second = 20  # 95 s for the long one
    gate.gate.set()
    with pytest.raises(Busy, match="longer than predicted"):
        long.future.result(WAIT)
    first.future.result(WAIT)
    short.future.result(WAIT)
    scheduler.close()
    assert gate.seen == [1, 3]


def test_an_idle_engine_accepts_however_long_it_takes(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=1, deadline_seconds=WAIT)
    scheduler._tokens_per_second = 0.001
    gate.gate.set()
    assert len(scheduler.submit([run_of(1), run_of(2)]).future.result(WAIT)) == 2
    scheduler.close()


def test_more_than_max_in_flight_is_refused(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=2, deadline_seconds=WAIT)
    job = scheduler.submit([run_of(1), run_of(2)])
    with pytest.raises(Busy, match="2 decisions are waiting"):
        scheduler.submit([run_of(3)])
    gate.gate.set()
    job.future.result(WAIT)
    scheduler.close()


def test_work_past_its_deadline_is_given_up(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=100, deadline_seconds=0.2)
    job = scheduler.submit([run_of(1), run_of(2)])
    time.sleep(0.4)
    gate.gate.set()
    with pytest.raises(Busy):
        job.future.result(WAIT)
    scheduler.close()
    assert gate.seen == [1]


def test_a_prompt_is_given_up_in_the_middle_when_its_deadline_passes(engine: Engine) -> None:
    scheduler = Scheduler(engine, max_in_flight=100, deadline_seconds=0.005)
    with pytest.raises(Busy, match="longer than predicted"):
        scheduler.submit([run_of(1, 1900)]).future.result(WAIT)
    scheduler.close()


def test_a_caller_that_leaves_while_waiting_is_never_evaluated(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=100, deadline_seconds=WAIT)
    first = scheduler.submit([run_of(1)])
    await_running(scheduler)
    left = scheduler.submit([run_of(2)])
    left.future.cancel()
    scheduler.cancel(left)
    gate.gate.set()
    first.future.result(WAIT)
    scheduler.close()
    assert 2 not in gate.seen


def test_a_caller_that_leaves_while_running_spoils_nothing_for_the_rest(gate: Gate) -> None:
    gate.group_size = 1
    scheduler = Scheduler(gate, max_in_flight=100, deadline_seconds=WAIT)
    leaving: Job = scheduler.submit([run_of(1, 1500)])
    await_running(scheduler)
    staying = scheduler.submit([run_of(2)])
    leaving.future.cancel()
    scheduler.cancel(leaving)
    gate.gate.set()
    assert staying.future.result(WAIT)[0].evaluated == 24
    scheduler.close()


def test_an_abort_between_evaluations_only_repeats_one(engine: Engine) -> None:
    scheduler = Scheduler(engine, max_in_flight=100, deadline_seconds=WAIT)
    engine.abort()
    assert len(scheduler.submit([run_of(1), run_of(2)]).future.result(WAIT)) == 2
    scheduler.close()


def test_closing_finishes_what_was_accepted_and_refuses_the_rest(gate: Gate) -> None:
    scheduler = Scheduler(gate, max_in_flight=100, deadline_seconds=WAIT)
    job = scheduler.submit([run_of(1), run_of(2)])
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    while not scheduler._closing:
        time.sleep(0.005)
    with pytest.raises(Busy, match="shutting down"):
        scheduler.submit([run_of(3)])
    gate.gate.set()
    closing.join(WAIT)
    assert len(job.future.result(0)) == 2
    assert scheduler.fault() == "the engine has stopped"
