"""One llama.cpp context behind plain calls: decode rows, save and restore sequences. Knows nothing of prompts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from adapter.model import Model

# Kernels take rows in groups, and rows that are left over go through others, which round differently: on x86 from 8
# rows on all of them agree (tiled K-quants from 8, llamafile's from 8, repacked types in fours). The same holds for the
# rows that the output matrix is multiplied with, so logits are asked for in groups too.
ROW_GROUP = 8
_ABORTED = 2  # what llama_decode returns when the abort callback said so (llama.h)
_CELLS = 256  # llama.cpp rounds a stream's length up to a multiple of it


class EngineError(RuntimeError):
    """An evaluation failed in llama.cpp, or its logits are not numbers."""


class Cancelled(Exception):  # noqa: N818 - an outcome, not an error
    """The evaluation was given up because nobody waits for it any more."""


@dataclass(frozen=True)
class Piece:
    """Rows of one sequence for one decode: a multiple of `ROW_GROUP` tokens."""

    stream: int
    position: int  # of the first token
    tokens: Sequence[int]
    read: int | None = None  # index of the token behind which logits are wanted


class Context:
    """A llama.cpp context in which every sequence has a stream of its own; one thread at a time may use it.

    Streams, and not one cache for all (`kv_unified`): a sequence then always begins at its own first cell, and sums
    over its cells are grouped the same wherever it lies.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_tokens: int,
        streams: int,
        threads: int,
        rows: int,
        flash_attention: bool | None = None,
    ) -> None:
        """Room for `streams` sequences of `max_tokens`; at most `rows` in one decode.

        Flash attention is on on a GPU and off on a CPU, unless given.

        Raises `EngineError` where there is no memory for it.
        """
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = -(-max_tokens // _CELLS) * _CELLS * streams
        # Equal, and never exceeded: llama.cpp splits a larger batch at places of its own choosing.
        parameters.n_batch = parameters.n_ubatch = rows
        parameters.n_seq_max = streams
        parameters.n_outputs_max = streams * ROW_GROUP
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.kv_unified = False
        parameters.op_offload = parameters.offload_kqv = model.gpu_layers != 0  # what is asked for, and no more
        # On the CPU few rows over many cells, what a question behind a state is, are slow with it, and its tiles round
        # differently unless cut at 64.
        self.flash_attention = model.gpu_layers != 0 if flash_attention is None else flash_attention
        parameters.flash_attn_type = int(self.flash_attention)
        # llama.cpp asks between graph nodes, from its own threads. The question is strlen(flag): a C function needs no
        # interpreter lock, and the flag's first byte turns its answer from 0 to 1.
        self._abort_flag = ctypes.create_string_buffer(2)
        parameters.abort_callback = ctypes.cast(ctypes.CDLL(None).strlen, llama_cpp.ggml_abort_callback)
        parameters.abort_callback_data = ctypes.cast(self._abort_flag, ctypes.c_void_p)
        self._context: Any = llama_cpp.llama_init_from_model(model.pointer, parameters)
        if not self._context:
            raise EngineError(f"llama.cpp cannot make a context of {streams} x {max_tokens} tokens: not enough memory?")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(rows, 0, 1)
        self._vocabulary_size = model.vocabulary_size
        self.streams = streams
        self.rows = rows

    def abort(self) -> None:
        """Give up the decode that is running, or else the next; any thread may call it. It then raises `Cancelled`."""
        self._abort_flag[0] = b"\x01"

    def decode(self, pieces: Sequence[Piece]) -> list[NDArray[np.float32] | None]:
        """Evaluate the pieces together; the logits that each asked for, shape (vocabulary,), None where it did not.

        Raises `Cancelled` after `abort`, and `EngineError` where llama.cpp fails or logits are not finite: the context
        must then be cleared.
        """
        batch = self._batch
        row = 0
        rows_to_read: list[int | None] = []
        for piece in pieces:
            group = None if piece.read is None else piece.read // ROW_GROUP
            rows_to_read.append(None if piece.read is None else row + piece.read)
            for index, token in enumerate(piece.tokens):
                batch.token[row] = token
                batch.pos[row] = piece.position + index
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = piece.stream
                batch.logits[row] = index // ROW_GROUP == group
                row += 1
        batch.n_tokens = row
        status = llama_cpp.llama_decode(self._context, batch)
        if status == _ABORTED:
            raise Cancelled
        if status != 0:
            raise EngineError(f"llama_decode returned {status}")
        return [None if index is None else self._logits(index) for index in rows_to_read]

    def draw(self, sampler: Any) -> int:
        """The token that a llama_sampler draws from the logits behind the last row of the last decode that was read."""
        token: int = llama_cpp.llama_sampler_sample(sampler, self._context, -1)
        return token

    def save(self, stream: int) -> NDArray[np.uint8]:
        """All that the sequence has left in the context, in ordinary memory."""
        size = llama_cpp.llama_state_seq_get_size(self._context, stream)
        state = np.empty(size, np.uint8)
        if llama_cpp.llama_state_seq_get_data(self._context, _bytes(state), size, stream) != size:
            raise EngineError("llama.cpp did not save a sequence whole")
        return state

    def restore(self, stream: int, state: NDArray[np.uint8]) -> None:
        """Make the sequence what it was when saved, in any stream."""
        self.drop(stream)
        if llama_cpp.llama_state_seq_set_data(self._context, _bytes(state), len(state), stream) == 0:
            raise EngineError("llama.cpp refused a saved sequence")

    def drop(self, stream: int, from_position: int = 0) -> None:
        """Forget the sequence from a position on; from elsewhere than 0 only where the model can be cut."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, stream, from_position or -1, -1):
            raise EngineError(f"llama.cpp cannot drop a sequence from position {from_position}")

    def clear(self) -> None:
        """Forget everything, with the data: what is not a number would spread from cells that are masked."""
        llama_cpp.llama_memory_clear(self._memory, True)
        self._abort_flag[0] = b"\x00"

    def close(self) -> None:
        """Free the context."""
        if self._context:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._context)
            self._context = None

    def _logits(self, row: int) -> NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        logits = np.ctypeslib.as_array(pointer, shape=(self._vocabulary_size,)).copy()
        if not np.isfinite(logits).all():
            raise EngineError("the model's logits are not finite")
        return logits


def _bytes(state: NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
