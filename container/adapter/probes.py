"""What an engine does before it is called ready: probes whether caching changes answers here, and a first decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.engine import ALIGNMENTS, Engine, TokenRun
from adapter.prompt import PromptBuilder

FIRST_DECISION = ("The light is on.", "Is the light on?", ("Yes.", "No."))  # short: the start waits for it


@dataclass(frozen=True)
class Exactness:
    """What the probes found. Differences are the largest of any logit from a fresh evaluation; 0 is equal bits."""

    alignment: int  # tokens
    flash_attention: bool
    restored_difference: float
    joint_difference: float | None  # None where prompts are decoded one by one
    reuse: bool  # whether states are reused
    joint: bool  # whether prompts are decoded together

    def as_metadata(self) -> dict[str, Any]:
        """The fields as JSON, and `exact` for those who want one word."""
        return {"exact": self.restored_difference == 0 and not self.joint_difference, **asdict(self)}


def make_ready(engine: Engine, prompts: PromptBuilder, *, tolerance: float) -> Exactness:
    """Prove an unused engine, evaluate what all prompts begin with, and answer one decision."""
    first = prompts.build(*FIRST_DECISION)
    exactness = prove(engine, first.tokens, tolerance=tolerance)
    engine.keep(prompts.head())
    engine.evaluate([TokenRun(first.tokens)])
    return exactness


def prove(engine: Engine, tokens: Sequence[int], *, tolerance: float) -> Exactness:
    """Find the smallest alignment of an unused engine at which answers do not depend on what was cached or grouped.

    `tokens` are an ordinary prompt's. Where no alignment is exact, the engine goes on reusing states and decoding
    together only as far as logits differ by no more than `tolerance`.
    """
    restored, joint = float("inf"), None
    for alignment in (size for size in ALIGNMENTS if size >= engine.alignment):
        engine.alignment = alignment
        restored, joint = _differences(engine, tokens)
        if restored == 0 and not joint:
            break
    reuse = restored <= tolerance
    together = joint is not None and joint <= tolerance
    if not reuse:
        engine.stop_reuse()
    if not together:
        engine.group_size = 1
    return Exactness(engine.alignment, engine.context.flash_attention, restored, joint, reuse, together)


def _differences(engine: Engine, tokens: Sequence[int]) -> tuple[float, float | None]:
    """How far a prompt's logits move when its beginning is restored, and when it is decoded beside strangers."""
    length = 2 * engine.alignment - 3  # one piece before the cut and one behind it, padded: start-up waits for them
    sample = tuple((list(tokens) * (length // len(tokens) + 1))[:length])
    whole = TokenRun(sample)
    fresh = _logits(engine, whole)
    engine.forget_streams()
    engine.keep(sample[: engine.alignment])
    engine.forget_streams()
    restored = _distance(fresh, _logits(engine, whole))
    joint = None
    if engine.group_size > 1:
        engine.forget_streams()
        strangers = [TokenRun(sample[:shift:-1]) for shift in (4, 0)]
        joint = _distance(fresh, engine.evaluate([strangers[0], whole, strangers[1]])[1].logits)
    engine.forget_streams()
    engine.cache.clear()
    return restored, joint


def _logits(engine: Engine, run: TokenRun) -> NDArray[np.float32]:
    return engine.evaluate([run])[0].logits


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.abs(a - b).max())
