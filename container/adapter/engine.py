"""The scoring engine: tokens in, the logits of the last position out, and only what was not seen before is evaluated.

One prompt has one answer, bit for bit: whatever was cached, however it was grouped, and beside whom. That holds because
every piece that is decoded begins and ends at a multiple of the alignment, in a stream of its own, padded behind the
token that is read; `_Work` is the one place where pieces are cut. Why this suffices: docs/decisions/0004-exactness.md.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from adapter.context import ROW_GROUP, Cancelled, Context, EngineError, Piece
from adapter.model import Model
from adapter.prefix_cache import PrefixCache, Tokens, common_length

__all__ = ["ALIGNMENTS", "Cancelled", "Engine", "EngineError", "Evaluation", "TokenRun"]

ALIGNMENTS = (ROW_GROUP, 64)  # tried in this order; 64 is the tile of flash attention and of chunked recurrent layers
_ROWS = 512  # rows of one decode: more do not make it faster, and abort is asked more rarely
_WORTH_WAITING = 64  # tokens that a prompt is spared by the state of another that is decoded just now
_WORTH_KEEPING = 32  # tokens of a state at first sight: evaluating fewer again costs what a piece of their own does
_MOST_REMEMBERED = 4096  # beginnings that were seen and not kept
_GPU_STREAMS = 16  # a GPU is idle most of the time with the rows of one question; a CPU is busy with 8


@dataclass(frozen=True)
class TokenRun:
    """A prompt for the engine."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...] = ()  # positions up to which other prompts may share its tokens, ascending
    shared: bool = False  # whether other prompts that share them are known to come


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
    boundaries: list[int]  # aligned positions up to which other prompts may share it, ascending
    shared: bool
    alignment: int
    cuts: list[int] = field(default_factory=list)  # the boundaries at which it pauses, to keep its state
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


@dataclass(frozen=True)
class _Held:
    """What a stream's cells hold after its prompt was read, padding apart."""

    tokens: Tokens
    boundary: int  # up to which it is worth keeping when the stream is needed; 0 for not at all


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
        flash_attention: bool | None = None,
    ) -> None:
        """Make a context for prompts of up to `max_tokens`; `streams` of them are decoded together at most.

        What is None follows from where the model is: on a GPU or on the CPU.
        Raises `EngineError` where there is no memory for it.
        """
        if streams is None:
            streams = _GPU_STREAMS if model.gpu_layers else 1
        rows = max(_ROWS, streams * ALIGNMENTS[-1])
        self.context = Context(
            model,
            max_tokens=max_tokens,
            streams=streams,
            threads=threads,
            rows=rows,
            flash_attention=flash_attention,
        )
        self.max_tokens = max_tokens
        self.alignment = ALIGNMENTS[0] if not self.context.flash_attention else ALIGNMENTS[-1]
        self.group_size = streams  # prompts decoded together at most
        self._can_be_cut = model.can_be_cut
        self.cache = PrefixCache(cache_bytes, can_be_cut=self._can_be_cut)
        self.evaluated = 0  # tokens since the engine was made, padding counted
        self.tokens_per_second = 0.0  # of the latest evaluation; 0 before the first
        self._reuses = True
        self._held: dict[int, _Held] = {}  # by stream; attention models only: a recurrent state is past its prompt
        self._seen: dict[bytes, None] = {}  # beginnings that were not kept, the latest last

    def abort(self) -> None:
        """Make the evaluation that is running, or else the next, raise `Cancelled`; any thread may call it."""
        self.context.abort()

    def evaluate(self, runs: Sequence[TokenRun]) -> list[Evaluation]:
        """The logits behind each prompt, in order. What they share is evaluated once.

        Raises `Cancelled` soon after `abort` was called, `EngineError` where llama.cpp fails or logits are not finite.
        """
        works = [self._work(run) for run in runs]
        beginnings = [_digest(work) for work in works]
        together = Counter(beginnings)
        for work, beginning in zip(works, beginnings, strict=True):
            work.shared |= together[beginning] > 1
        waiting, active = list(works), dict[int, _Work]()
        try:
            while waiting or active:
                self._start_waiting(waiting, active)
                self._decode_round(active)
        except (Cancelled, EngineError):
            self.forget_streams()
            raise
        seconds = sum(work.seconds for work in works)
        self.tokens_per_second = sum(work.evaluated for work in works) / max(seconds, 1e-6)
        return [_evaluation(work) for work in works]

    def keep(self, tokens: Sequence[int]) -> int:
        """Evaluate the beginning that all prompts share and never let it go; returns its length after alignment."""
        cut = self._down(len(tokens))
        if cut == 0:
            return 0
        work = _Work(np.array(tokens[:cut], np.int32), [], shared=False, alignment=self.alignment)
        self._prepare(0, work)
        while work.position < cut:
            self._decode_round({0: work})
        self.cache.add(work.tokens, self.context.save(0), pinned=True)
        return cut

    def novel_tokens(self, runs: Sequence[TokenRun]) -> list[int]:
        """About how many tokens each prompt will cost `evaluate`, one after another; any thread may ask."""
        costs = []
        held = [held.tokens[: held.boundary] for held in tuple(self._held.values())]  # the engine's thread changes it
        earlier: Tokens | None = None
        for run in runs:
            tokens = np.array(run.tokens, np.int32)
            known, _ = self.cache.longest(tokens, len(tokens) - 1, touch=False)
            if earlier is not None:
                known = max(known, common_length(earlier, tokens))
            known = max([known, *(common_length(other, tokens) for other in held)])
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
        boundaries = sorted({self._down(boundary) for boundary in run.boundaries} - {0})
        boundaries = [boundary for boundary in boundaries if boundary < len(run.tokens)]
        return _Work(np.array(run.tokens, np.int32), boundaries, run.shared, self.alignment)

    def _cuts(self, work: _Work) -> list[int]:
        """The boundaries at which a prompt shall pause so that its state is kept: where that is likely to pay.

        An attention model needs no pause but for prompts that wait: its state is cut to a boundary when its stream is
        needed (`_displace`). A recurrent state is there only while its last token is, and each pause makes shorter
        pieces, which are slower by the row.
        """
        ahead = [boundary for boundary in work.boundaries if boundary > work.position]
        if self._can_be_cut:
            return ahead[-1:] if work.shared else []  # the last one's state serves the earlier ones too
        cuts, known = [], work.position
        grows = known > min(
            work.boundaries, default=known
        )  # what is known ends inside the state: a transcript's next turn
        for boundary in ahead:
            if work.shared or grows or boundary - known >= _WORTH_KEEPING or self._seen_before(work, boundary):
                cuts.append(boundary)
                known = boundary
        return cuts

    def _seen_before(self, work: _Work, boundary: int) -> bool:
        """Whether the beginning occurred before and was not kept; it is remembered."""
        key = _digest(work, boundary)
        seen = key in self._seen
        self._seen.pop(key, None)
        self._seen[key] = None
        if len(self._seen) > _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return seen

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
        """Put the longest known beginning of the prompt into the stream, and decide where to pause."""
        self._displace(stream, work)
        known, state = self.cache.longest(work.tokens, self._limit(work))
        known = self._down(known)
        held = self._usable(stream, work)
        if held and held >= known:
            self.context.drop(stream, held)
            known = held
        elif known and state is not None:
            self.context.restore(stream, state)
            if self._can_be_cut:
                self.context.drop(stream, known)
        else:
            self.context.drop(stream)
            known = 0
        self._held.pop(stream, None)
        work.position = work.reused = known
        work.cuts = self._cuts(work)

    def _displace(self, stream: int, work: _Work) -> None:
        """Save what the stream holds up to its last boundary, unless the next prompt goes on from there."""
        held = self._held.get(stream)
        if held is None or self._usable(stream, work) >= held.boundary:
            return
        tokens = held.tokens[: held.boundary]
        self.context.drop(stream, held.boundary)
        self._held[stream] = _Held(tokens, held.boundary)
        self._add_to_cache(stream, tokens)

    def _usable(self, stream: int, work: _Work) -> int:
        """How many tokens of the prompt the stream holds already, at a cut."""
        held = self._held.get(stream)
        if held is None:
            return 0
        return self._down(min(common_length(held.tokens, work.tokens), self._limit(work)))

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
            if work.boundaries and work.position <= work.boundaries[-1]:
                work.prefill_seconds += seconds
            if work.position in work.cuts:
                self._add_to_cache(stream, work.tokens[: work.position])
            if logits is not None:
                work.logits = logits
                del active[stream]
                if self._can_be_cut:
                    self._held[stream] = _Held(work.tokens, max(work.boundaries, default=0))

    def _add_to_cache(self, stream: int, tokens: Tokens) -> None:
        """Save the sequence, which these tokens made, unless that is known or nothing is reused."""
        known, _ = self.cache.longest(tokens, len(tokens))
        if self._reuses and known < len(tokens):
            self.cache.add(tokens, self.context.save(stream))

    def _limit(self, work: _Work) -> int:
        """The longest beginning that may be reused: the last token must be evaluated."""
        return self._down(len(work.tokens) - 1) if self._reuses else 0

    def _down(self, position: int) -> int:
        return position // self.alignment * self.alignment


def _digest(work: _Work, boundary: int | None = None) -> bytes:
    """A short name of the prompt's beginning up to a boundary, its last one unless given."""
    end = boundary if boundary is not None else work.boundaries[-1] if work.boundaries else len(work.tokens)
    return blake2b(work.tokens[:end].tobytes(), digest_size=16).digest()


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
