"""One prompt has one answer: random mixes of requests, every logit equal to a fresh evaluation's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from adapter.engine import Engine, TokenRun
from adapter.model import Model
from adapter.probes import prove
from tests.models.make_models import model_path

_LONGEST = 1400  # tokens
_WORDS = range(300, 30_000)  # token ids that every vocabulary has


@dataclass
class Pair:
    """An engine under test, and one that evaluates every prompt alone and anew."""

    tested: Engine
    fresh: Engine
    answers: dict[tuple[int, ...], NDArray[np.float32]] = field(default_factory=dict)

    def expected(self, run: TokenRun) -> NDArray[np.float32]:
        """The prompt's logits, evaluated in an empty context."""
        if run.tokens not in self.answers:
            self.fresh.forget_streams()
            evaluation = self.fresh.evaluate([TokenRun(run.tokens)])[0]
            assert evaluation.reused == 0
            self.answers[run.tokens] = evaluation.logits
        return self.answers[run.tokens]


# Model (+flash: with flash attention), sequences decoded together, bytes of the cache, rounds. Attention and hybrid
# models; output matrices that are quantized and that are not; types that are repacked, tiled, and neither.
CASES = [
    ("tiny-attention", 1, 2_000_000, 6),
    ("tiny-attention", 4, 200_000, 8),
    ("tiny-attention-f16", 3, 2_000_000, 4),
    ("tiny-sentencepiece", 2, 2_000_000, 4),
    ("tiny-attention-f16+flash", 3, 2_000_000, 4),
    ("tiny-hybrid+flash", 3, 2_000_000, 4),
    ("small-hybrid-q4_k_m+flash", 1, 20_000_000, 1),
    ("tiny-hybrid", 1, 2_000_000, 6),
    ("tiny-hybrid", 5, 500_000, 8),
    ("small-hybrid-q4_k_m", 1, 20_000_000, 2),
    ("small-hybrid-q4_k_m", 3, 2_000_000, 3),
    ("embedded", 1, 20_000_000, 1),
    ("embedded-q4_0", 2, 20_000_000, 1),
    ("embedded-q8_0", 2, 20_000_000, 1),
    ("embedded-q4_k_m", 2, 20_000_000, 1),
    ("embedded-bf16", 2, 20_000_000, 1),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, int, bool]]:
    name, streams, cache_bytes, rounds = request.param
    name, _, flash = name.partition("+")
    model = Model(model_path(name))
    tested, fresh = (
        Engine(
            model,
            max_tokens=_LONGEST,
            threads=1,
            cache_bytes=size,
            streams=count,
            flash_attention=bool(flash),
        )
        for size, count in ((cache_bytes, streams), (0, 1))
    )
    yield Pair(tested, fresh), rounds, name.startswith("embedded")
    tested.close()
    fresh.close()
    model.close()


def test_random_mixes_change_no_logit(case: tuple[Pair, int, bool]) -> None:
    pair, rounds, slow = case
    longest = 40 if slow else 500
    chance = random.Random(20261201)  # noqa: S311 - reproducible on purpose
    mix = Mix(chance, longest)
    exactness = prove(pair.tested, mix.words(60), tolerance=0)
    assert exactness.as_metadata()["exact"], exactness
    assert pair.tested.group_size == pair.tested.context.streams
    pair.tested.keep(mix.head)
    compared = reused = 0
    for number in range(rounds):
        runs = mix.request()
        if number % 4 == 3:
            pair.tested.forget_streams()
        for run, evaluation in zip(runs, pair.tested.evaluate(runs), strict=True):
            difference = np.abs(evaluation.logits - pair.expected(run)).max()
            assert difference == 0, f"{len(run.tokens)} tokens, {evaluation.reused} reused: {difference}"
            padded = -(-len(run.tokens) // exactness.alignment) * exactness.alignment
            assert evaluation.evaluated + evaluation.reused == padded
            compared += 1
            reused += evaluation.reused
    assert compared >= 3 * rounds
    assert reused > 0
    assert pair.tested.cache.bytes <= pair.tested.cache.max_bytes


class Mix:
    """Random requests: unique, repeated, growing and shared states, with questions of 1 to 1,200 tokens."""

    def __init__(self, chance: random.Random, longest: int) -> None:
        self.chance = chance
        self.longest = longest
        self.head = self.words(37)
        self.states = [self.head + self.words(chance.randrange(1, longest)) for _ in range(3)]

    def words(self, count: int) -> tuple[int, ...]:
        """Random ordinary tokens."""
        return tuple(self.chance.choices(_WORDS, k=count))

    def request(self) -> list[TokenRun]:
        """Prompts that arrive at once."""
        runs: list[TokenRun] = []
        for _ in range(self.chance.randrange(3, 7)):
            kind = self.chance.random()
            which = self.chance.randrange(len(self.states))
            if kind < 0.25:
                self.states[which] = self.head + self.words(self.chance.randrange(1, self.longest))
            elif kind < 0.5:
                state = self.states[which]
                grown = state[: -self.chance.randrange(1, 4)] + self.words(self.chance.randrange(1, 60))
                self.states[which] = grown[: 2 * self.longest]
            elif kind < 0.6 and runs:
                runs.append(self.chance.choice(runs))
                continue
            state = self.states[which]
            tail = self.words(self.chance.choice([1, 2, 7, 8, 9, 30, min(64, self.longest), min(100, self.longest)]))
            if self.chance.random() < 0.1:
                tail += self.words(self.longest // 3)  # as long as a question with many options
            boundaries = (len(self.head), max(1, len(state) - 1))
            runs.append(TokenRun((state + tail)[-_LONGEST:], boundaries, shared=self.chance.random() < 0.3))
        return runs
