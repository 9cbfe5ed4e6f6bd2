"""One llama.cpp context: tokens in, the logits of the last position out."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger(__name__)
_GGML_LOG_LEVEL_ERROR = 4  # enum ggml_log_level of ggml.h; the binding has no name for it
_ABORTED = 2  # what llama_decode returns when the abort callback said so (llama.h)
_BATCH = 512  # tokens handed to one llama_decode; a longer prompt is fed in pieces


class ModelLoadError(RuntimeError):
    """llama.cpp refused the model; the message is one line."""


class EngineError(RuntimeError):
    """An evaluation failed in llama.cpp, or its logits are not numbers."""


class Cancelled(Exception):  # noqa: N818 - an outcome, not an error
    """The evaluation was given up because nobody waits for it any more."""


@dataclass(frozen=True)
class Evaluation:
    """The logits behind one prompt and what they cost."""

    logits: NDArray[np.float32]  # (vocabulary,)
    evaluated: int  # tokens
    reused: int  # tokens
    seconds: float


class Model:
    """A GGUF loaded by llama.cpp: weights and metadata."""

    def __init__(self, path: Path, *, gpu_layers: int = 0) -> None:
        """Load the file. Raises `ModelLoadError` with llama.cpp's last complaint."""
        llama_cpp.llama_backend_init()
        complaints = _route_logs()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        self.pointer: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.pointer:
            raise ModelLoadError(f"llama.cpp cannot load {path}: {complaints[-1] if complaints else 'no reason given'}")
        self.path = path

    def metadata(self, key: str) -> str | None:
        """A value of the GGUF's metadata as text; None where the key is absent."""
        buffer = ctypes.create_string_buffer(1)
        size = llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, 1)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size + 1)
        return buffer.value.decode("utf-8", errors="replace")

    def close(self) -> None:
        """Free the weights. Contexts made from them must be closed before."""
        if self.pointer:
            llama_cpp.llama_model_free(self.pointer)
            self.pointer = None


class Engine:
    """Evaluates prompts one at a time; one thread at a time may use it."""

    def __init__(self, model: Model, *, max_tokens: int, threads: int) -> None:
        """Make a context for prompts of up to `max_tokens`. Raises `EngineError` where there is no memory for it."""
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = max_tokens
        parameters.n_batch = parameters.n_ubatch = min(_BATCH, max_tokens)
        parameters.n_seq_max = 1
        parameters.n_threads = parameters.n_threads_batch = threads
        self._batch_size: int = parameters.n_batch
        # llama.cpp asks between graph nodes, from its own threads. The question is strlen(flag): a C function needs no
        # interpreter lock, and the flag's first byte turns its answer from 0 to 1.
        self._abort_flag = ctypes.create_string_buffer(2)
        parameters.abort_callback = ctypes.cast(ctypes.CDLL(None).strlen, llama_cpp.ggml_abort_callback)
        parameters.abort_callback_data = ctypes.cast(self._abort_flag, ctypes.c_void_p)
        self._context: Any = llama_cpp.llama_init_from_model(model.pointer, parameters)
        if not self._context:
            raise EngineError(f"llama.cpp cannot make a context of {max_tokens} tokens: not enough memory?")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(model.pointer)
        self._vocabulary_size: int = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def abort(self) -> None:
        """Give up the evaluation that is running; any thread may call it. It then raises `Cancelled`."""
        self._abort_flag[0] = b"\x01"

    def evaluate(self, tokens: Sequence[int]) -> Evaluation:
        """The logits behind `tokens`.

        Raises `Cancelled` soon after `abort` was called, and `EngineError` where llama.cpp fails or the logits are not
        finite.
        """
        started = time.perf_counter()
        self._abort_flag[0] = b"\x00"
        llama_cpp.llama_memory_clear(self._memory, True)  # with data: a recurrent state would leak into the next prompt
        for start in range(0, len(tokens), self._batch_size):
            piece = tokens[start : start + self._batch_size]
            buffer = (llama_cpp.llama_token * len(piece))(*piece)
            status = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(buffer, len(piece)))
            if status == _ABORTED:
                raise Cancelled
            if status != 0:
                raise EngineError(f"llama_decode returned {status} at token {start} of {len(tokens)}")
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        logits = np.ctypeslib.as_array(row, shape=(self._vocabulary_size,)).copy()
        if not np.isfinite(logits).all():
            raise EngineError("the model's logits are not finite")
        return Evaluation(logits, evaluated=len(tokens), reused=0, seconds=time.perf_counter() - started)

    def close(self) -> None:
        """Free the context."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator] # a ctypes function type
def _forward_log(level: int, text: bytes, _: Any) -> None:
    line = text.decode("utf-8", errors="replace").strip()
    if line and level == _GGML_LOG_LEVEL_ERROR:
        _complaints.append(line)
        del _complaints[:-20]
    if line:
        _log.debug("llama.cpp: %s", line)


_complaints: list[str] = []


def _route_logs() -> list[str]:
    """Send llama.cpp's log to Python's; returns the list that collects its latest errors."""
    _complaints.clear()
    llama_cpp.llama_log_set(_forward_log, ctypes.c_void_p())
    return _complaints
