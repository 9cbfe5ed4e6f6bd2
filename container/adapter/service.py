"""What a request means: decisions to prompts, prompts through the scheduler, logits to results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapter.calibrations import AppliedCalibration, Calibrations, QuestionType
from adapter.engine import Evaluation, TokenRun
from adapter.prompt import VERSIONS, Layout, Prompt, PromptBuilder
from adapter.readout import READOUT, UNCALIBRATED, average, read, rotate, shifts
from adapter.result import ModelInfo, Result, Timing
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
    calibration: str | None = None
    permutations: int = 1  # orders of the options to average over
    question_type: QuestionType | None = None  # of the APIs that have types


@dataclass(frozen=True)
class _Plan:
    """The prompts of one decision: one for each order of its options, the declared order first."""

    decision: Decision
    calibration: AppliedCalibration | None
    shifts: list[int]
    prompts: list[Prompt]


class DecisionService:
    """Answers decisions with one model."""

    def __init__(
        self,
        prompts: PromptBuilder,
        scheduler: Scheduler,
        calibrations: Calibrations,
        *,
        model: ModelInfo,
        max_tokens: int,
        max_request_tokens: int,
    ) -> None:
        """`model` is the metadata that every result carries."""
        self._prompts = prompts
        self._scheduler = scheduler
        self._calibrations = calibrations
        self._model = model
        self._max_tokens = max_tokens
        self._max_request_tokens = max_request_tokens

    async def decide(self, decisions: Sequence[Decision]) -> tuple[list[Result], Timing]:
        """The results of `decisions`, in order, and the timing of the whole.

        Raises `TooLarge`, `SlotError`, `CalibrationError` or `Busy` before any work, `EngineError` where the evaluation
        fails. Cancelling the call drops the work.
        """
        started, arrived = time.perf_counter(), time.monotonic()
        self._scheduler.check_room(len(decisions), arrived)
        plans = await asyncio.to_thread(self._plan, decisions)
        prompts = [prompt for plan in plans for prompt in plan.prompts]
        job = self._scheduler.submit(
            [TokenRun(prompt.tokens, prompt.boundaries, shared=len(prompts) > 1) for prompt in prompts], arrived
        )
        try:
            evaluations = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._scheduler.cancel(job)
            raise
        total = time.perf_counter() - started
        rows = iter(evaluations)
        results = [self._result(plan, [next(rows) for _ in plan.prompts], total) for plan in plans]
        prefill = sum(evaluation.prefill_seconds for evaluation in evaluations)
        timing: Timing = {
            "batch_size": len(decisions),
            "prefix_tokens": plans[0].prompts[0].boundaries[-1],
            "prefill_seconds": prefill,
            "suffix_forward_seconds": sum(evaluation.seconds for evaluation in evaluations) - prefill,
            "total_seconds": total,
        }
        return results, timing

    def fault(self) -> str | None:
        """Why no decision can be answered at present; None while it can."""
        return self._scheduler.fault()

    @property
    def draining(self) -> bool:
        """Whether nothing more is accepted because the process is about to end."""
        return self._scheduler.draining

    def drain(self) -> None:
        """Accept nothing more; what was accepted is still answered. May be called from a signal handler."""
        self._scheduler.drain()

    def abandon(self, reason: str, retry_after: float) -> None:
        """Tell everyone who waits for a decision that there will be none: `Busy`, with a time in seconds."""
        self._scheduler.abandon(reason, retry_after)

    @property
    def model_name(self) -> str:
        """The name of the model that answers."""
        return str(self._model["name"])

    @property
    def calibration_name(self) -> str | None:
        """The calibration of typed questions, which cannot name one; None where the model's own probabilities stand."""
        calibration = self._calibrations.for_questions
        return None if calibration is None else calibration.name

    @property
    def gpu_layers(self) -> int:
        """Layers on the GPU."""
        return int(self._model["gpu_layers"])

    @property
    def exactness(self) -> dict[str, Any]:
        """What the start-up probes found (`Exactness.as_metadata`)."""
        found: dict[str, Any] = self._model["exactness"]
        return found

    @property
    def queue_depth(self) -> int:
        """Prompts waiting or running."""
        return self._scheduler.depth

    def _plan(self, decisions: Sequence[Decision]) -> list[_Plan]:
        plans: list[_Plan] = []
        total = 0
        for decision in decisions:
            plans.append(self._plan_one(decision))
            total += sum(len(prompt.tokens) for prompt in plans[-1].prompts)
            if total > self._max_request_tokens:  # whatever else it asks: reading on would cost the others their time
                raise TooLarge(
                    f"the prompts of the request's first {len(plans)} decisions have {total} tokens together; "
                    f"at most {self._max_request_tokens} are allowed (SEMIF_MAX_REQUEST_TOKENS)"
                )
        return plans

    def _plan_one(self, decision: Decision) -> _Plan:
        calibration = self._calibrations.for_decision(
            decision.calibration, decision.question_type, VERSIONS[decision.layout]
        )
        descriptions = [option.description for option in decision.options]
        if self._prompts.surely_exceeds(decision.state, decision.question, descriptions, self._max_tokens):
            raise TooLarge(
                f"the prompt of decision {decision.id!r} has more than {2 * self._max_tokens} tokens; "
                f"at most {self._max_tokens} are allowed (SEMIF_MAX_TOKENS)"
            )
        orders = shifts(len(descriptions), decision.permutations)
        prompts = [
            self._prompts.build(decision.state, decision.question, rotate(descriptions, shift), decision.layout)
            for shift in orders
        ]
        for prompt in prompts:
            if len(prompt.tokens) > self._max_tokens:
                raise TooLarge(
                    f"the prompt of decision {decision.id!r} has {len(prompt.tokens)} tokens; "
                    f"at most {self._max_tokens} are allowed (SEMIF_MAX_TOKENS)"
                )
        return _Plan(decision, calibration, orders, prompts)

    def _result(self, plan: _Plan, evaluations: Sequence[Evaluation], total_seconds: float) -> Result:
        temperature = 1.0 if plan.calibration is None else plan.calibration.temperature
        slots = [slot.token for slot in plan.prompts[0].slots]  # the same in every order
        answers = [read(evaluation.logits, slots, temperature) for evaluation in evaluations]
        probabilities, spread = average([answer.probabilities for answer in answers], plan.shifts)
        declared = answers[0]
        result: Result = {
            "id": plan.decision.id,
            "option_ids": [option.id for option in plan.decision.options],
            "probabilities": probabilities,
            "option_logits": declared.logits,
            "answer_token_ids": slots,
            "input_tokens": sum(len(prompt.tokens) for prompt in plan.prompts),
            "cached_tokens": sum(evaluation.reused for evaluation in evaluations),
            "allowed_token_mass": sum(answer.allowed_token_mass for answer in answers) / len(answers),
            "full_vocab_argmax_id": declared.argmax,
            "prompt_sha256": plan.prompts[0].sha256,
            "prompt_version": plan.prompts[0].version,
            "model": self._model,
            "readout": READOUT,
            "probability_status": UNCALIBRATED if plan.calibration is None else plan.calibration.status,
            "forward_seconds": sum(evaluation.seconds for evaluation in evaluations),
            "total_seconds": total_seconds,
        }
        if plan.decision.permutations > 1:
            result["permutations"] = {"orders": len(answers), "spread": spread}
        return result
