"""The plain path: what a user would write with llama-cpp-python's own API, one full prompt for each decision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray


class Plain:
    """`llama_cpp.Llama` with its defaults: unified cache, flash attention as llama.cpp chooses."""

    def __init__(self, path: Path, *, max_tokens: int, threads: int, gpu_layers: int) -> None:
        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=max_tokens,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=gpu_layers,
            verbose=False,
        )

    def decide(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits behind the whole prompt, evaluated anew."""
        self._llama.reset()  # type: ignore[no-untyped-call]
        self._llama.eval(tokens)
        row = self._llama._ctx.get_logits_ith(-1)  # noqa: SLF001 - its public `scores` are empty without logits_all
        return np.ctypeslib.as_array(row, shape=(self._llama.n_vocab(),)).copy()

    def close(self) -> None:
        """Free it."""
        self._llama.close()
