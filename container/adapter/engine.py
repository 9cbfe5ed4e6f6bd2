"""The scoring engine: tokens in, the logits of the last position out, and only what was not seen before is evaluated.

One prompt has one answer, bit for bit: whatever was cached, however it was grouped, and beside whom. That holds because
every piece that is decoded begins and ends at a multiple of the alignment, in a stream of its own, padded behind the
token that is read; `_Work` is the one place where pieces are cut. Why this suffices: docs/decisions/0004-exactness.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adapter.context import ROW_GROUP, Cancelled, Context, EngineError, Piece
from adapter.model import Model
from adapter.prefix_cache import PrefixCache, Tokens, common_length

__all__ = ["ALIGNMENTS", "Cancelled", "Engine", "EngineError", "Evaluation", "TokenRun"]

ALIGNMENTS = (ROW_GROUP, 64)  # tried in this order; 64 is the tile of flash attention and of chunked recurrent layers
_ROWS = 512  # rows of one decode: more do not make it faster, and abort is asked more rarely
_WORTH_WAITING = 64  # tokens that a prompt is spared by the state of another that is decoded just now
_GPU_STREAMS = 16  # a GPU is idle most of the time with the rows of one question; a CPU is busy with 8


@dataclass(frozen=True)
class TokenRun:
    """A prompt for the engine."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...] = ()  # positions up to which other prompts may share its tokens, ascending


@dataclass(frozen=True)
class Evaluation:
    """The logits behind one prompt and what they cost."""

    logits: NDArray[np.float32]  # (vocabulary,)
    evaluated: int  # tokens, padding counted
    reused: int  # tokens
    seconds: float  # of decoding, shared equally where prompts were decoded together
    prefill_seconds: float  # the part of it that went into what other prompts may share


@dataclass(eq=False)
class _Work:
    """A prompt on its way through the engine: which piece comes next."""

    tokens: Tokens
    cuts: list[int]  # where its state is to be kept, ascending
    alignment: int
    position: int = 0
    reused: int = 0
    evaluated: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    logits: NDArray[np.float32] | None = field(default=None, repr=False)

    def next_rows(self) -> int:
        """Rows up to the next cut, or to the padded end."""
        return next((cut for cut in self.cuts if cut > self.position), self._padded) - self.position

    def piece(self, stream: int, rows: int) -> Piece:
        """The next `rows` rows, padded behind the last token."""
        end = self.position + rows
        tokens = self.tokens[self.position : end].tolist()
        tokens += [int(self.tokens[-1])] * (rows - len(tokens))
        return Piece(
            stream, self.position, tokens, len(self.tokens) - 1 - self.position if end == self._padded else None
        )

    @property
    def _padded(self) -> int:
        return -(-len(self.tokens) // self.alignment) * self.alignment


class Engine:
    """Evaluates prompts with one context; one thread at a time may use it, but for `abort` and `novel_tokens`."""

    def __init__(
        self,
        model: Model,
        *,
        max_tokens: int,
        threads: int,
        cache_bytes: int = 512 * 1024 * 1024,
        streams: int | None = None,
    ) -> None:
        """Make a context for prompts of up to `max_tokens`; `streams` of them are decoded together at most.

        Raises `EngineError` where there is no memory for it.
        """
        if streams is None:
            streams = _GPU_STREAMS if model.gpu_layers else 1
        rows = max(_ROWS, streams * ALIGNMENTS[-1])
        self.context = Context(model, max_tokens=max_tokens, streams=streams, threads=threads, rows=rows)
        self.max_tokens = max_tokens
        self.alignment = ALIGNMENTS[0] if not self.context.flash_attention else ALIGNMENTS[-1]
        self.group_size = streams  # prompts decoded together at most
        self._can_be_cut = model.can_be_cut
        self.cache = PrefixCache(cache_bytes, can_be_cut=self._can_be_cut)
        self.evaluated = 0  # tokens since the engine was made, padding counted
        self._reuses = True
        self._held: dict[int, Tokens] = {}  # by stream: what its cells hold, padding apart

    def abort(self) -> None:
        """Make the evaluation that is running, or else the next, raise `Cancelled`; any thread may call it."""
        self.context.abort()

    def evaluate(self, runs: Sequence[TokenRun]) -> list[Evaluation]:
        """The logits behind each prompt, in order. What they share is evaluated once.

        Raises `Cancelled` soon after `abort` was called, `EngineError` where llama.cpp fails or logits are not finite.
        """
        works = [self._work(run) for run in runs]
        waiting, active = list(works), dict[int, _Work]()
        try:
            while waiting or active:
                self._start_waiting(waiting, active)
                self._decode_round(active)
        except (Cancelled, EngineError):
            self.forget_streams()
            raise
        return [_evaluation(work) for work in works]

    def keep(self, tokens: Sequence[int]) -> int:
        """Evaluate the beginning that all prompts share and never let it go; returns its length after alignment."""
        cut = self._down(len(tokens))
        if cut == 0:
            return 0
        work = _Work(np.array(tokens[:cut], np.int32), [], self.alignment)
        self._prepare(0, work)
        while work.position < cut:
            self._decode_round({0: work})
        self.cache.add(work.tokens, self.context.save(0), pinned=True)
        return cut

    def novel_tokens(self, runs: Sequence[TokenRun]) -> list[int]:
        """About how many tokens each prompt will cost `evaluate`, one after another; any thread may ask."""
        costs = []
        earlier: Tokens | None = None
        for run in runs:
            tokens = np.array(run.tokens, np.int32)
            known, _ = self.cache.longest(tokens, len(tokens) - 1, touch=False)
            if earlier is not None:
                known = max(known, common_length(earlier, tokens))
            spared = self._down(known) if self._reuses else 0
            costs.append(max(len(tokens) - spared, self.alignment))
            earlier = tokens
        return costs

    def stop_reuse(self) -> None:
        """Evaluate every prompt whole from now on, for a backend on which restored states change answers."""
        self._reuses = False

    def forget_streams(self) -> None:
        """Empty the context; saved states stay."""
        self._held.clear()
        self.context.clear()

    def close(self) -> None:
        """Free the context."""
        self.context.close()

    def _work(self, run: TokenRun) -> _Work:
        if not 0 < len(run.tokens) <= self.max_tokens:
            raise EngineError(f"a prompt of {len(run.tokens)} tokens; at most {self.max_tokens} are possible")
        tokens = np.array(run.tokens, np.int32)
        cuts = sorted({self._down(boundary) for boundary in run.boundaries} - {0})
        cuts = [cut for cut in cuts if cut < len(tokens)]
        if self._can_be_cut:
            cuts = cuts[-1:]  # its state serves the earlier ones too
        return _Work(tokens, cuts, self.alignment)

    def _start_waiting(self, waiting: list[_Work], active: dict[int, _Work]) -> None:
        """Give streams to prompts, but not to those whose beginning another is just evaluating."""
        for work in list(waiting):
            free = [stream for stream in range(self.group_size) if stream not in active]
            if not free:
                return
            if self._will_be_shared(work, active.values()):
                continue
            stream = max(free, key=lambda number: self._usable(number, work))
            self._prepare(stream, work)
            waiting.remove(work)
            active[stream] = work

    def _will_be_shared(self, work: _Work, active: Iterable[_Work]) -> bool:
        """Whether a prompt that is being evaluated will soon leave a state that spares this one much."""
        known, _ = self.cache.longest(work.tokens, self._limit(work), touch=False)
        for other in active:
            shared = common_length(other.tokens, work.tokens)
            for cut in other.cuts:
                if cut > other.position:
                    usable = min(shared, cut) if self._can_be_cut else cut if cut <= shared else 0
                    if usable - known >= _WORTH_WAITING:
                        return True
        return False

    def _prepare(self, stream: int, work: _Work) -> None:
        """Put the longest known beginning of the prompt into the stream."""
        known, state = self.cache.longest(work.tokens, self._limit(work))
        known = self._down(known)
        held = self._usable(stream, work)
        if held and held >= known:
            if self._can_be_cut:
                self.context.drop(stream, held)
            known = held
        elif known and state is not None:
            self.context.restore(stream, state)
            if self._can_be_cut:
                self.context.drop(stream, known)
        else:
            self.context.drop(stream)
            known = 0
        work.position = work.reused = known
        self._held.pop(stream, None)

    def _usable(self, stream: int, work: _Work) -> int:
        """How many tokens of the prompt the stream holds already, at a cut."""
        held = self._held.get(stream)
        if held is None:
            return 0
        shared = common_length(held, work.tokens)
        if self._can_be_cut:
            return self._down(min(shared, self._limit(work)))
        return shared if shared == len(held) and shared <= self._limit(work) else 0

    def _decode_round(self, active: dict[int, _Work]) -> None:
        """Decode as many rows of each prompt, so that llama.cpp has nothing to split."""
        if not active:
            return
        streams = sorted(active)
        most = self._down(self.context.rows // len(streams))
        rows = min(most, *(active[stream].next_rows() for stream in streams))
        started = time.perf_counter()
        read = self.context.decode([active[stream].piece(stream, rows) for stream in streams])
        seconds = (time.perf_counter() - started) / len(streams)
        self.evaluated += rows * len(streams)
        for stream, logits in zip(streams, read, strict=True):
            work = active[stream]
            work.position += rows
            work.evaluated += rows
            work.seconds += seconds
            if work.cuts and work.position <= work.cuts[-1]:
                work.prefill_seconds += seconds
            if work.position in work.cuts:
                self._keep_state(stream, work)
            if logits is not None:
                work.logits = logits
                del active[stream]
                if self._can_be_cut:
                    self._held[stream] = work.tokens

    def _keep_state(self, stream: int, work: _Work) -> None:
        tokens = work.tokens[: work.position]
        known, _ = self.cache.longest(tokens, len(tokens))
        if self._reuses and known < len(tokens):
            self.cache.add(tokens, self.context.save(stream))

    def _limit(self, work: _Work) -> int:
        """The longest beginning that may be reused: the last token must be evaluated."""
        return self._down(len(work.tokens) - 1) if self._reuses else 0

    def _down(self, position: int) -> int:
        return position // self.alignment * self.alignment


def _evaluation(work: _Work) -> Evaluation:
    if work.logits is None:
        raise EngineError("a prompt was not read")
    return Evaluation(
        work.logits,
        evaluated=work.evaluated,
        reused=work.reused,
        seconds=work.seconds,
        prefill_seconds=work.prefill_seconds,
    )
