"""What a request means: decisions to prompts, prompts through the scheduler, logits to results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapter.engine import Evaluation
from adapter.prompt import Layout, Prompt, PromptBuilder
from adapter.readout import READOUT, UNCALIBRATED, read
from adapter.scheduler import Scheduler


class TooLarge(ValueError):  # noqa: N818 - named for what it is, as the HTTP status is
    """A prompt, or all prompts of a request, have more tokens than allowed; the message says both numbers."""


@dataclass(frozen=True)
class Option:
    """An answer that the caller declares."""

    id: str
    description: str


@dataclass(frozen=True)
class Decision:
    """One question about one state. The wire's `D`."""

    id: str
    state: Any  # JSON: a string, object or array
    question: str
    options: tuple[Option, ...]
    layout: Layout = "state-first"


class DecisionService:
    """Answers decisions with one model."""

    def __init__(
        self,
        prompts: PromptBuilder,
        scheduler: Scheduler,
        *,
        model: dict[str, Any],
        max_tokens: int,
        max_request_tokens: int,
    ) -> None:
        """`model` is the metadata that every result carries."""
        self._prompts = prompts
        self._scheduler = scheduler
        self._model = model
        self._max_tokens = max_tokens
        self._max_request_tokens = max_request_tokens

    async def decide(self, decisions: Sequence[Decision]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The results of `decisions`, in order, and the timing of the whole.

        Raises `TooLarge`, `SlotError` or `Busy` before any work, `EngineError` where the evaluation fails. Cancelling
        the call drops the work.
        """
        started = time.perf_counter()
        prompts = await asyncio.to_thread(self._build, decisions)
        job = self._scheduler.submit([prompt.tokens for prompt in prompts])
        try:
            evaluations = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._scheduler.cancel(job)
            raise
        total = time.perf_counter() - started
        results = [self._result(*row, total) for row in zip(decisions, prompts, evaluations, strict=True)]
        timing = {
            "batch_size": len(decisions),
            "prefix_tokens": 0,
            "prefill_seconds": 0.0,
            "suffix_forward_seconds": sum(evaluation.seconds for evaluation in evaluations),
            "total_seconds": total,
        }
        return results, timing

    def fault(self) -> str | None:
        """Why no decision can be answered at present; None while it can."""
        return self._scheduler.fault()

    def _build(self, decisions: Sequence[Decision]) -> list[Prompt]:
        prompts = []
        for decision in decisions:
            descriptions = [option.description for option in decision.options]
            prompt = self._prompts.build(decision.state, decision.question, descriptions, decision.layout)
            if len(prompt.tokens) > self._max_tokens:
                raise TooLarge(
                    f"the prompt of decision {decision.id!r} has {len(prompt.tokens)} tokens; "
                    f"at most {self._max_tokens} are allowed (SEMIF_MAX_TOKENS)"
                )
            prompts.append(prompt)
        total = sum(len(prompt.tokens) for prompt in prompts)
        if total > self._max_request_tokens:
            raise TooLarge(
                f"the request's prompts have {total} tokens together; "
                f"at most {self._max_request_tokens} are allowed (SEMIF_MAX_REQUEST_TOKENS)"
            )
        return prompts

    def _result(
        self, decision: Decision, prompt: Prompt, evaluation: Evaluation, total_seconds: float
    ) -> dict[str, Any]:
        tokens = [slot.token for slot in prompt.slots]
        answer = read(evaluation.logits, tokens)
        return {
            "id": decision.id,
            "option_ids": [option.id for option in decision.options],
            "probabilities": answer.probabilities,
            "option_logits": answer.logits,
            "answer_token_ids": tokens,
            "input_tokens": len(prompt.tokens),
            "cached_tokens": evaluation.reused,
            "allowed_token_mass": answer.allowed_token_mass,
            "full_vocab_argmax_id": answer.argmax,
            "prompt_sha256": prompt.sha256,
            "prompt_version": prompt.version,
            "model": self._model,
            "readout": READOUT,
            "probability_status": UNCALIBRATED,
            "forward_seconds": evaluation.seconds,
            "total_seconds": total_seconds,
        }
