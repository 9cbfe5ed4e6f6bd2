"""The engine's promises but exactness: what is evaluated, what is kept, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adapter.context import Piece
from adapter.engine import Cancelled, Engine, EngineError, TokenRun
from adapter.model import Model
from adapter.prompt import ChatTemplate, PromptBuilder
from adapter.vocabulary import Vocabulary
from tests.models.make_models import RECIPES, model_path

UNIT = 16  # a question behind a cached state costs at most so many tokens more than its own
OPTIONS = ("Account access and authentication support.", "Billing and payment support.", "Sales.")


class Bench:
    """A model's engine and prompts, new for each test."""

    def __init__(self, name: str) -> None:
        self.model = Model(model_path(name))
        source = self.model.metadata("tokenizer.chat_template")
        assert source is not None
        vocabulary = Vocabulary(self.model.pointer)
        self.prompts = PromptBuilder(ChatTemplate(source, bos=vocabulary.bos, eos=vocabulary.eos), vocabulary)
        self.engines: list[Engine] = []

    def engine(self, **settings: Any) -> Engine:
        """An engine for prompts of up to 3,000 tokens."""
        self.engines.append(Engine(self.model, **{"max_tokens": 3000, "threads": 1, **settings}))
        return self.engines[-1]

    def run(self, state: object, question: str = "Which queue?", options: tuple[str, ...] = OPTIONS) -> TokenRun:
        """A prompt of the default layout."""
        prompt = self.prompts.build(state, question, options)
        return TokenRun(prompt.tokens, prompt.boundaries)

    def close_engines(self) -> None:
        """Free the contexts."""
        while self.engines:
            self.engines.pop().close()


@pytest.fixture(scope="module")
def bench_of() -> Iterator[Callable[[str], Bench]]:
    """Models by name, each loaded once."""
    made: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        if name not in made:
            made[name] = Bench(name)
        return made[name]

    yield get
    for bench in made.values():
        bench.close_engines()
        bench.model.close()


@pytest.fixture(params=["tiny-attention", "tiny-hybrid", "tiny-no-system-role"])
def bench(request: pytest.FixtureRequest, bench_of: Callable[[str], Bench]) -> Iterator[Bench]:
    made = bench_of(request.param)
    yield made
    made.close_engines()


@pytest.fixture
def hybrid(bench_of: Callable[[str], Bench]) -> Iterator[Bench]:
    made = bench_of("tiny-hybrid")
    yield made
    made.close_engines()


def test_a_new_prompt_costs_its_tokens_and_padding(bench: Bench) -> None:
    run = bench.run("A parcel is late.")
    evaluation = bench.engine().evaluate([run])[0]
    assert evaluation.evaluated == -(-len(run.tokens) // 8) * 8
    assert evaluation.reused == 0


def test_the_head_is_evaluated_once(bench: Bench) -> None:
    engine = bench.engine(cache_bytes=0)  # a pinned state does not count against the bound
    kept = engine.keep(bench.prompts.head())
    assert kept >= len(bench.prompts.head()) - 7
    run = bench.run(["another", "state"])
    assert engine.evaluate([run])[0].reused >= kept


def test_the_same_state_asked_again_costs_the_question(bench: Bench) -> None:
    engine = bench.engine()
    state = "The parcel left the depot on Tuesday. " * 40
    engine.evaluate([bench.run(state)])
    engine.evaluate([bench.run("A stranger's state.")])
    again = bench.run(state, "Is the customer angry?")
    closing = len(again.tokens) - again.boundaries[-1]
    assert engine.evaluate([again])[0].evaluated <= closing + UNIT


@pytest.mark.parametrize("as_list", [False, True], ids=["text", "list"])
def test_a_growing_transcript_costs_the_new_turn_and_the_question(bench: Bench, as_list: bool) -> None:
    engine = bench.engine()
    head = engine.keep(bench.prompts.head())
    turns: list[str] = []
    boundary = None
    for number in range(8):
        turns.append(f"user: for the {number}th time, where is parcel {number * 37}?")
        run = bench.run(list(turns) if as_list else "\n".join(turns))
        evaluated = engine.evaluate([run])[0].evaluated
        if boundary is not None:
            # A hybrid's first turns are shorter than what is kept at first sight.
            not_kept = boundary - head if boundary - head < 32 + UNIT and not bench.model.can_be_cut else 0
            assert evaluated <= len(run.tokens) - boundary + UNIT + not_kept
        boundary = run.boundaries[-1]


def test_a_short_state_is_evaluated_in_one_piece_and_kept_when_it_comes_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.engine()
    head = engine.keep(bench.prompts.head())
    pieces: list[int] = []
    decode = engine.context.decode

    def counted(batch: list[Piece]) -> list[NDArray[np.float32] | None]:
        pieces.append(len(batch))
        return decode(batch)

    monkeypatch.setattr(engine.context, "decode", counted)
    reused = []
    for question in ("Which?", "Who?", "When?"):
        reused.append(
            engine.evaluate([bench.run("The parcel is late, says Ann, who has waited since Tuesday.", question)])[
                0
            ].reused
        )
        engine.evaluate([bench.run(f"{question}: a stranger's state, which is another each time.")])
    # An attention model's state is cut out of its stream afterwards; a hybrid's must be saved on the way, and is so
    # from its second sight on.
    assert len(pieces) == (6 if bench.model.can_be_cut else 7)
    assert [count > head for count in reused] == [False, bench.model.can_be_cut, True]


def test_a_state_that_others_will_share_is_kept_at_once(hybrid: Bench) -> None:
    engine = hybrid.engine()
    head = engine.keep(hybrid.prompts.head())
    runs = [
        replace(hybrid.run("The parcel is late, says Ann, who waits.", question), shared=True)
        for question in ("Which?", "Who?")
    ]
    assert [engine.evaluate([run])[0].reused > head for run in runs] == [False, True]


def test_questions_of_one_request_share_the_state(bench: Bench) -> None:
    for streams in (1, 4):
        engine = bench.engine(streams=streams)
        state = "The parcel left the depot on Tuesday. " * 40
        runs = [bench.run(state, f"Question {number}?") for number in range(9)]
        evaluations = engine.evaluate(runs)
        questions = sum(len(run.tokens) - run.boundaries[-1] + UNIT for run in runs)
        assert sum(evaluation.evaluated for evaluation in evaluations) <= runs[0].boundaries[-1] + questions


def test_predicted_costs_are_what_is_evaluated(bench: Bench) -> None:
    engine = bench.engine()
    state = "The parcel left the depot on Tuesday. " * 40
    runs = [bench.run(state, f"Question {number}?") for number in range(5)]
    for _ in ("anew", "known"):
        predicted = sum(engine.novel_tokens(runs))
        evaluated = sum(evaluation.evaluated for evaluation in engine.evaluate(runs))
        assert predicted == pytest.approx(evaluated, rel=0.1)


def test_the_cache_keeps_to_its_bytes_and_lets_the_oldest_go(hybrid: Bench) -> None:
    states = [f"State {number}: " + "a parcel is late. " * 20 for number in range(4)]
    engine = hybrid.engine()
    engine.evaluate([hybrid.run(states[0])])
    one = engine.cache.bytes
    engine = hybrid.engine(cache_bytes=int(1.9 * one))  # two states, and the head's own
    for state in (states[0], states[1], states[0], states[2]):
        engine.evaluate([hybrid.run(state)])
        assert engine.cache.bytes <= engine.cache.max_bytes
    assert engine.evaluate([hybrid.run(states[0], "And?")])[0].reused > 100
    assert engine.evaluate([hybrid.run(states[1], "And?")])[0].reused < 100


@pytest.mark.parametrize("length", [511, 512, 513, 2999, 3000])
def test_prompts_longer_than_a_batch(bench: Bench, length: int) -> None:
    tokens = tuple(1000 + number % 500 for number in range(length))
    evaluation = bench.engine().evaluate([TokenRun(tokens)])[0]
    assert evaluation.evaluated == -(-length // 8) * 8


def test_a_prompt_over_the_limit_is_refused(hybrid: Bench) -> None:
    engine = hybrid.engine()
    with pytest.raises(EngineError, match="3001 tokens; at most 3000"):
        engine.evaluate([TokenRun(tuple([1000] * 3001))])


def test_abort_ends_a_running_evaluation_and_the_next_is_right(bench_of: Callable[[str], Bench]) -> None:
    made = bench_of("embedded")
    engine, run = made.engine(), made.run("The parcel left the depot on Tuesday. " * 200)
    short = made.run("A parcel is late.")
    expected = engine.evaluate([short])[0].logits
    errors: list[Cancelled] = []

    def evaluate() -> None:
        try:
            engine.evaluate([run])
        except Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=evaluate)
    thread.start()
    time.sleep(0.3)
    engine.abort()
    thread.join(60)
    assert len(errors) == 1
    assert np.array_equal(engine.evaluate([short])[0].logits, expected)


def test_logits_that_are_not_numbers_are_an_error_and_leave_no_trace(bench_of: Callable[[str], Bench]) -> None:
    made = bench_of("tiny-hybrid-poisoned")
    clean = TokenRun(tuple(range(2000, 2100)))
    poisoned = TokenRun((*range(3000, 3200), RECIPES["tiny-hybrid-poisoned"].poisoned_token or 0, *range(4000, 4050)))
    expected = made.engine().evaluate([clean])[0].logits
    engine = made.engine(cache_bytes=0)
    with pytest.raises(EngineError, match="not finite"):
        engine.evaluate([poisoned])
    assert np.array_equal(engine.evaluate([clean])[0].logits, expected)
    made.close_engines()


def test_recurrent_state_does_not_leak_into_the_next_prompt(hybrid: Bench) -> None:
    run = TokenRun(tuple(range(1000, 1100)))
    expected = hybrid.engine().evaluate([run])[0].logits
    engine = hybrid.engine(cache_bytes=0)
    engine.evaluate([TokenRun(tuple(range(5000, 5300)))])
    assert np.array_equal(engine.evaluate([run])[0].logits, expected)
