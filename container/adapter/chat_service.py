"""What a chat request means: a conversation to a prompt, the prompt through the scheduler, tokens to a reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from adapter.chats import Chat, Finished, FinishReason
from adapter.conversation import ChatPrompt, ConversationBuilder, Message
from adapter.generator import Sampling
from adapter.scheduler import Scheduler
from adapter.service import TooLarge


class Reply:
    """An answer as it comes. A context manager: at its exit nobody listens, and what is left is not generated."""

    def __init__(self, chat: Chat, events: asyncio.Queue[str | Finished | Exception]) -> None:
        self._chat = chat
        self._events = events
        self.finish_reason: FinishReason = "stop"  # known at the end

    async def next(self) -> str | None:
        """The next piece of text; None at the end. Raises `Busy` or `EngineError` where there will be no more."""
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Finished):
            self.finish_reason = event.reason
            return None
        return event

    async def text(self) -> str:
        """All of it. Raises as `next` does."""
        pieces = []
        while (piece := await self.next()) is not None:
            pieces.append(piece)
        return "".join(pieces)

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        self._chat.cancelled = True

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the conversation as the model reads it."""
        return len(self._chat.prompt.tokens)

    @property
    def reused_tokens(self) -> int:
        """Those of them that were known already."""
        return self._chat.reused

    @property
    def evaluated_tokens(self) -> int:
        """Those of them that were evaluated for it."""
        return self._chat.evaluated

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return self._chat.generated


class ChatService:
    """Answers conversations with one model."""

    def __init__(
        self, prompts: ConversationBuilder, scheduler: Scheduler, *, max_tokens: int, deadline_seconds: float
    ) -> None:
        """`max_tokens` bounds a prompt, and a prompt and its answer together."""
        self._prompts = prompts
        self._scheduler = scheduler
        self._max_tokens = max_tokens
        self._deadline = deadline_seconds

    async def answer(
        self, messages: Sequence[Message], sampling: Sampling, *, stops: Sequence[str], max_tokens: int | None
    ) -> Reply:
        """Begin an answer of at most `max_tokens`, by default as many as there is room for.

        Raises `PromptError`, `TooLarge` or `Busy` before any work.
        """
        deadline = time.monotonic() + self._deadline
        prompt = await asyncio.to_thread(self._prompt, messages)
        room = self._max_tokens - len(prompt.tokens) + 1  # the last token of an answer is not read again
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[str | Finished | Exception] = asyncio.Queue()

        def tell(event: str | Finished | Exception) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        chat = Chat(
            prompt,
            sampling,
            stops=stops,
            most_tokens=room if max_tokens is None else min(max_tokens, room),
            deadline=deadline,
            tell=tell,
        )
        self._scheduler.submit_chat(chat)
        return Reply(chat, events)

    def _prompt(self, messages: Sequence[Message]) -> ChatPrompt:
        if self._prompts.surely_exceeds(messages, self._max_tokens):
            raise TooLarge(
                f"the messages have more tokens than the {self._max_tokens} that are allowed (SEMIF_MAX_TOKENS)"
            )
        prompt = self._prompts.build(messages)
        if len(prompt.tokens) > self._max_tokens:
            raise TooLarge(
                f"the messages have {len(prompt.tokens)} tokens; "
                f"at most {self._max_tokens} are allowed (SEMIF_MAX_TOKENS)"
            )
        return prompt

    @property
    def in_flight(self) -> int:
        """Chats that wait or generate."""
        return self._scheduler.chats_in_flight
