"""The start-up probes: they find what they look for, and the engine acts on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from adapter.engine import Engine, Evaluation, TokenRun
from adapter.model import Model
from adapter.probes import prove
from tests.models.make_models import model_path

TOKENS = tuple(range(1000, 1090))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(model_path("tiny-hybrid"))
    yield loaded
    loaded.close()


class Shaky(Engine):
    """An engine whose logits move: when a state was restored, when prompts were grouped, below an alignment."""

    def __init__(self, model: Model, *, restored: float = 0, grouped: float = 0, below: int = 1_000) -> None:
        super().__init__(model, max_tokens=512, threads=1, streams=3)
        self.shift = {"restored": restored, "grouped": grouped}
        self.below = below

    def evaluate(self, runs: Sequence[TokenRun]) -> list[Evaluation]:
        """Evaluate, and move the logits."""
        evaluations = super().evaluate(runs)
        if self.alignment >= self.below:
            return evaluations
        grouped = self.shift["grouped"] if len(runs) > 1 else 0
        return [
            replace(one, logits=one.logits + grouped + (self.shift["restored"] if one.reused else 0))
            for one in evaluations
        ]


def test_an_exact_engine_is_found_exact_at_the_smallest_alignment(model: Model) -> None:
    engine = Shaky(model)
    exactness = prove(engine, TOKENS, tolerance=0)
    assert exactness.as_metadata() == {
        "exact": True,
        "alignment": 8,
        "flash_attention": False,
        "restored_difference": 0,
        "joint_difference": 0,
        "reuse": True,
        "joint": True,
    }
    assert engine.group_size == 3
    assert len(engine.cache) == 0
    engine.close()


def test_the_larger_alignment_is_taken_where_the_smaller_is_not_exact(model: Model) -> None:
    engine = Shaky(model, restored=0.5, below=64)
    exactness = prove(engine, TOKENS, tolerance=0)
    assert (exactness.alignment, exactness.restored_difference) == (64, 0)
    assert engine.evaluate([TokenRun(TOKENS[:70])])[0].evaluated == 128
    engine.close()


@pytest.mark.parametrize(("tolerance", "reused"), [(0.1, 0), (1.0, 64)])
def test_states_are_reused_only_within_the_tolerance(model: Model, tolerance: float, reused: int) -> None:
    engine = Shaky(model, restored=0.5)
    exactness = prove(engine, TOKENS, tolerance=tolerance)
    assert exactness.restored_difference == pytest.approx(0.5, abs=1e-3)
    assert exactness.reuse == (tolerance > 0.5)
    assert not exactness.as_metadata()["exact"]
    engine.keep(TOKENS[:64])
    assert engine.evaluate([TokenRun(TOKENS)])[0].reused == reused
    engine.close()


@pytest.mark.parametrize(("tolerance", "group_size"), [(0.1, 1), (1.0, 3)])
def test_prompts_are_decoded_together_only_within_the_tolerance(
    model: Model, tolerance: float, group_size: int
) -> None:
    engine = Shaky(model, grouped=0.5)
    exactness = prove(engine, TOKENS, tolerance=tolerance)
    assert exactness.joint_difference == pytest.approx(0.5, abs=1e-3)
    assert exactness.reuse
    assert engine.group_size == group_size
    engine.close()
