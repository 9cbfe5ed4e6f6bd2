"""Text generation with the loaded weights: a context of its own, from which tokens are drawn one step at a time.

Nothing of the scoring engine is touched. As there, one prompt has one answer: it is cut at the same places whatever is
known of it already, so that reuse changes nothing of what is drawn.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np

from adapter.context import Cancelled, Context, EngineError, Piece
from adapter.conversation import ChatPrompt
from adapter.model import Model
from adapter.prefix_cache import State, Tokens, common_length

# Rows of one step of a prompt. Decisions wait for a step: on a CPU more rows hardly make it faster.
_ROWS_CPU, _ROWS_GPU = 128, 512
_GREEDY_BELOW = 1e-4  # temperature; logits divided by less would leave the range of a float
_NO_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: llama.cpp takes one from the system


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the defaults are those of OpenAI's API."""

    temperature: float = 1.0  # 0 takes the likeliest token
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None  # any integer; None for a different one each time


class Generation:
    """One answer on its way: each step evaluates a piece of the prompt, or draws a token and evaluates the last one."""

    steps: abc.Generator[int | None]  # None where a step drew no token; without end

    def __init__(self, reused: int) -> None:
        self.reused = reused  # tokens of the prompt that were known already
        self.evaluated = 0  # tokens of the prompt that were not, so far


class Generator:
    """Generates from one prompt at a time; one thread at a time may use it. Its context is made when first needed."""

    def __init__(self, model: Model, *, max_tokens: int, threads: int, alignment: int) -> None:
        """`max_tokens` bounds prompt and answer together; prompts are cut at multiples of `alignment`."""
        self._model = model
        self._threads = threads
        self._rows = _ROWS_GPU if model.gpu_layers else _ROWS_CPU
        self._context: Context | None = None
        self._alignment = alignment
        self.max_tokens = max_tokens
        # What can be gone on from: the beginning of the cells, or where those cannot be cut a saved state.
        self._known: Tokens = np.array([], np.int32)
        self._state: State | None = None

    def start(self, prompt: ChatPrompt, sampling: Sampling) -> Generation:
        """Begin an answer; any earlier one is over. Raises `EngineError` where there is no memory for the context."""
        if self._context is None:
            self._context = Context(
                self._model, max_tokens=self.max_tokens, streams=1, threads=self._threads, rows=self._rows
            )
        tokens = np.array(prompt.tokens, np.int32)
        generation = Generation(self._go_on(self._context, tokens))
        generation.steps = self._steps(self._context, generation, tokens, prompt.boundary, sampling)
        return generation

    def close(self) -> None:
        """Free the context."""
        if self._context is not None:
            self._context.close()
            self._context = None

    def _steps(
        self, context: Context, generation: Generation, tokens: Tokens, boundary: int, sampling: Sampling
    ) -> abc.Generator[int | None]:
        sampler = _sampler(sampling, self._model.vocabulary_size, self.max_tokens)
        try:
            # The last rows, at most one group, are a piece of their own, also where nothing else is to be evaluated.
            tail = self._down(len(tokens) - 1)
            kept = 0 if self._model.can_be_cut else min(self._down(boundary), tail)
            position = generation.reused
            while position < tail:
                end = min(position + self._rows, tail if position >= kept else kept)
                context.decode([Piece(0, position, tokens[position:end].tolist())])
                position = end
                generation.evaluated = position - generation.reused
                self._remember(context, tokens[:position], kept)
                yield None
            context.decode([Piece(0, tail, tokens[tail:].tolist(), read=len(tokens) - 1 - tail)])
            position = len(tokens)
            generation.evaluated = position - generation.reused
            while True:
                token = context.draw(sampler)
                yield token
                context.decode([Piece(0, position, [token], read=0)])
                position += 1
        except (Cancelled, EngineError):
            self._forget(context)
            raise
        finally:
            llama_cpp.llama_sampler_free(sampler)

    def _go_on(self, context: Context, tokens: Tokens) -> int:
        """Put the longest known beginning of the prompt into the context; returns its length."""
        shared = common_length(self._known, tokens)
        usable = min(self._down(shared), self._down(len(tokens) - 1))
        if self._model.can_be_cut:
            context.drop(0, usable)
            self._known = self._known[:usable]
            return usable
        if self._state is None or shared < len(self._known) or shared > usable:
            context.drop(0)
            return 0
        context.restore(0, self._state)
        return shared

    def _remember(self, context: Context, evaluated: Tokens, kept: int) -> None:
        """Note what the cells hold; where they cannot be cut, save them where the next turn will go on."""
        if self._model.can_be_cut:
            self._known = evaluated
        elif len(evaluated) == kept:
            self._known, self._state = evaluated.copy(), context.save(0)

    def _forget(self, context: Context) -> None:
        context.clear()
        self._known, self._state = np.array([], np.int32), None

    def _down(self, position: int) -> int:
        return position // self._alignment * self._alignment


def _sampler(sampling: Sampling, vocabulary_size: int, max_tokens: int) -> Any:
    """llama.cpp's own samplers in llama-server's order."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if sampling.frequency_penalty or sampling.presence_penalty:
        _add(
            chain,
            llama_cpp.llama_sampler_init_penalties(
                vocabulary_size,
                max_tokens,  # tokens looked back: all that were drawn; the prompt is not penalised
                1.0,
                sampling.frequency_penalty,
                sampling.presence_penalty,
            ),
        )
    if sampling.temperature < _GREEDY_BELOW:
        _add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain
    _add(chain, llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
    _add(chain, llama_cpp.llama_sampler_init_temp(sampling.temperature))
    _add(chain, llama_cpp.llama_sampler_init_dist(_NO_SEED if sampling.seed is None else sampling.seed % _NO_SEED))
    return chain


def _add(chain: Any, sampler: Any) -> None:
    llama_cpp.llama_sampler_chain_add(chain, sampler)
