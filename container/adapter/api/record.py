"""What is known of one request while it is served; never the caller's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from starlette.requests import Request

from adapter.chat_service import Reply
from adapter.result import Result


@dataclass
class Record:
    """What is written down about one request when it has been answered."""

    id: str = field(default_factory=lambda: f"req_{uuid4().hex}")
    kind: str | None = None  # which API's body it brought
    tokens_evaluated: int = 0
    tokens_reused: int = 0
    tokens_generated: int = 0  # by a chat
    masses: list[float] = field(default_factory=list)  # allowed token mass of each decision
    decision_seconds: float | None = None  # from acceptance to answer; None where nothing was decided

    def add(self, results: Sequence[Result]) -> None:
        """Account for the results (the wire's `R`) of its decisions."""
        self.masses += [result["allowed_token_mass"] for result in results]
        self.tokens_reused += sum(result["cached_tokens"] for result in results)
        self.tokens_evaluated += sum(result["input_tokens"] - result["cached_tokens"] for result in results)
        self.decision_seconds = max(result["total_seconds"] for result in results)

    def add_chat(self, reply: Reply) -> None:
        """Account for what a chat read and generated."""
        self.tokens_reused += reply.reused_tokens
        self.tokens_evaluated += reply.evaluated_tokens
        self.tokens_generated += reply.tokens


def record_of(request: Request) -> Record:
    """The record that `Telemetry` keeps of `request`."""
    record: Record = request.state.record
    return record
