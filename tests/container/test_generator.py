"""Text generation: one prompt and seed have one answer whatever was read before, and nothing is read twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from adapter.context import Context, EngineError, Piece
from adapter.conversation import ChatPrompt
from adapter.generator import Generator, Sampling
from adapter.model import Model
from tests.models.make_models import model_path

GREEDY = Sampling(temperature=0)
FIRST = ChatPrompt(tuple(range(1000, 1301)), 290)
SECOND = ChatPrompt((*FIRST.tokens[:290], *range(2000, 2045)), 330)  # the next turn of the same conversation
BRANCH = ChatPrompt((*FIRST.tokens[:100], *range(4000, 4010)), 105)
OTHER = ChatPrompt(tuple(range(3000, 3009)), 5)


@pytest.fixture(scope="module", params=["tiny-hybrid", "tiny-attention"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    loaded = Model(model_path(request.param))
    yield loaded
    loaded.close()


@pytest.fixture
def generator(model: Model) -> Iterator[Generator]:
    made = Generator(model, max_tokens=600, threads=1, alignment=8)
    yield made
    made.close()


def _answer(generator: Generator, prompt: ChatPrompt, sampling: Sampling = GREEDY, count: int = 6) -> list[int]:
    """The first tokens of an answer."""
    steps = generator.start(prompt, sampling).steps
    drawn = list(islice((token for token in steps if token is not None), count))
    steps.close()
    return drawn


def test_an_answer_does_not_depend_on_what_was_read_before(model: Model, generator: Generator) -> None:
    fresh = {}
    for prompt in (FIRST, SECOND, OTHER):
        alone = Generator(model, max_tokens=600, threads=1, alignment=8)
        fresh[prompt] = _answer(alone, prompt)
        alone.close()
    for prompt in (FIRST, FIRST, SECOND, OTHER, SECOND, FIRST, SECOND, SECOND):
        assert _answer(generator, prompt) == fresh[prompt]


def test_a_conversation_goes_on_from_where_it_was_read(model: Model, generator: Generator) -> None:
    reused = []
    for prompt in (FIRST, SECOND, SECOND, BRANCH, OTHER):
        generation = generator.start(prompt, GREEDY)
        list(islice(generation.steps, 8))
        reused.append(generation.reused)
        assert generation.evaluated == len(prompt.tokens) - generation.reused
        generation.steps.close()
    # Whole groups of 8 rows: cells can be cut behind any of them, a saved state is for what was saved.
    assert reused == [0, 288, 328, 96 if model.can_be_cut else 0, 0]


def test_a_step_reads_at_most_128_tokens_of_a_prompt(
    model: Model, generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    decode = Context.decode

    def noting(self: Context, pieces: Sequence[Piece]) -> object:
        rows.append(len(pieces[0].tokens))
        return decode(self, pieces)

    monkeypatch.setattr(Context, "decode", noting)
    steps = generator.start(FIRST, GREEDY).steps
    assert next(steps) is None
    assert rows == [128]
    list(islice((token for token in steps if token is not None), 4))
    # Where cells cannot be cut it pauses where the next turn will go on. The fourth token is drawn and not read.
    assert rows == [128, 128, *([40] if model.can_be_cut else [32, 8]), 5, 1, 1, 1]


def test_the_seed_decides(generator: Generator) -> None:
    first, second = Sampling(seed=7), Sampling(seed=8)
    answer = _answer(generator, FIRST, first)
    _answer(generator, OTHER)
    assert _answer(generator, FIRST, first) == answer
    assert _answer(generator, FIRST, second) != answer
    assert _answer(generator, FIRST, Sampling()) != _answer(generator, FIRST, Sampling())
    huge = Sampling(seed=-(2**70))
    assert _answer(generator, FIRST, huge) == _answer(generator, FIRST, huge)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0, seed=1), Sampling(temperature=1e-30, seed=1)])
def test_a_narrow_choice_is_the_likeliest_token(generator: Generator, sampling: Sampling) -> None:
    assert _answer(generator, FIRST, sampling) == _answer(generator, FIRST)


def test_penalties_keep_tokens_from_coming_again(generator: Generator) -> None:
    # Random weights hardly repeat themselves: a penalty below zero makes them.
    loved = _answer(generator, FIRST, Sampling(temperature=0, presence_penalty=-1000.0))
    assert loved == loved[:1] * 6
    assert _answer(generator, FIRST, Sampling(temperature=0, frequency_penalty=-1000.0)) == loved
    assert len(set(_answer(generator, FIRST, Sampling(temperature=0, presence_penalty=1000.0)))) == 6


def test_after_a_failure_everything_is_read_anew(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _answer(generator, FIRST)

    def fail(*_: object) -> None:
        raise EngineError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", fail)
        with pytest.raises(EngineError):
            _answer(generator, SECOND)
    assert generator.start(FIRST, GREEDY).reused == 0
    assert _answer(generator, FIRST) == answer
