"""Flash attention on or off: which of the two answers faster with this model on this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from adapter.engine import Engine, TokenRun
from adapter.model import Model

_STATE = 1536  # tokens: with much fewer attention is a small part of the work either way
_QUESTION = 50  # tokens
_QUESTIONS = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Comparison:
    """Seconds of the same questions over one state, each way with the padding that it needs to be exact."""

    with_it: float
    without_it: float

    @property
    def faster(self) -> bool:
        """Whether flash attention is."""
        return self.with_it < self.without_it


def compare(model: Model, tokens: Sequence[int], *, threads: int, max_tokens: int) -> Comparison:
    """Evaluate a long state and some questions both ways; `tokens` are an ordinary prompt's.

    Takes as long as some 3,600 tokens do. Raises `EngineError` where there is no memory for a second context.
    """
    length = min(_STATE, max_tokens - _QUESTION)
    state = (tuple(tokens) * (length // len(tokens) + 1))[:length]
    runs = [
        TokenRun(
            (*state, *(tokens[(number + index) % len(tokens)] for index in range(_QUESTION))), (length,), shared=True
        )
        for number in range(_QUESTIONS)
    ]
    seconds = {}
    for flash_attention in (False, True):
        engine = Engine(
            model, max_tokens=length + _QUESTION, threads=threads, streams=1, flash_attention=flash_attention
        )
        engine.evaluate([TokenRun(tuple(tokens))])  # the first evaluation brings weights into memory
        engine.forget_streams()
        started = time.perf_counter()
        engine.evaluate(runs)
        seconds[flash_attention] = time.perf_counter() - started
        engine.close()
    found = Comparison(with_it=seconds[True], without_it=seconds[False])
    _log.info(
        "flash attention %s: %d questions over %d tokens took %.2f s with it and %.2f s without",
        "on" if found.faster else "off",
        len(runs),
        length,
        found.with_it,
        found.without_it,
    )
    return found
