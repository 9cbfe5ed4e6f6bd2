"""Logits to an answer: probabilities over the declared slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

READOUT = "quantized last-position logits restricted to declared answer slots; no generated tokens"
UNCALIBRATED = "uncalibrated softmax over the declared options"


@dataclass(frozen=True)
class Answer:
    """One row of logits read at the answer slots."""

    probabilities: list[float]  # one for each slot, summing to 1
    logits: list[float]  # the slots' own
    allowed_token_mass: float  # share of the whole vocabulary's probability on the slots
    argmax: int  # token id, over the whole vocabulary


def read(logits: NDArray[np.float32], slots: Sequence[int]) -> Answer:
    """Softmax of `logits`, shape (vocabulary,), restricted to the token ids `slots`, in float64."""
    row = logits.astype(np.float64)
    chosen = row[list(slots)]
    weights = np.exp(chosen - chosen.max())
    peak = row.max()
    mass = np.exp(chosen - peak).sum() / np.exp(row - peak).sum()
    return Answer(
        probabilities=[float(p) for p in weights / weights.sum()],
        logits=[float(value) for value in chosen],
        allowed_token_mass=float(mass),
        argmax=int(row.argmax()),
    )
