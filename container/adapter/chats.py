"""Chats in flight: whose turn it is, what one step of it does, and when it is over."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from adapter.busy import Busy
from adapter.conversation import ChatPrompt
from adapter.generator import Generation, Generator, Sampling
from adapter.text_stream import TextStream
from adapter.vocabulary import Vocabulary

FinishReason = Literal["stop", "length"]

MOST_IN_FLIGHT = 4  # one generates, the others wait: a chat takes seconds, and decisions share the engine with it
_SMOOTHING = 0.2  # weight of the newest measurement in the running time of a step


@dataclass(frozen=True)
class Finished:
    """The end of an answer."""

    reason: FinishReason  # "length" also where the deadline came


class Chat:
    """One answer that was asked for, and how far it is. Only `Chats` changes it, but for `cancelled`."""

    def __init__(
        self,
        prompt: ChatPrompt,
        sampling: Sampling,
        *,
        stops: Sequence[str],
        most_tokens: int,
        deadline: float,
        tell: Callable[[str | Finished | Exception], None],
    ) -> None:
        """`deadline` is on time.monotonic's clock.

        `tell` gets each piece of text, then how it ended, on the engine's thread.
        """
        self.prompt = prompt
        self.sampling = sampling
        self.most_tokens = most_tokens
        self.deadline = deadline
        self.tell = tell
        self.text = TextStream(stops)
        self.generation: Generation | None = None  # from its first step on
        self.generated = 0  # tokens, without the one that ends the turn
        self.cancelled = False  # its caller left: it ends before its next step

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were known already."""
        return self.generation.reused if self.generation else 0

    @property
    def evaluated(self) -> int:
        """Tokens of the prompt that were evaluated so far."""
        return self.generation.evaluated if self.generation else 0


class Chats:
    """A bounded queue of chats, of which the first generates. `add`, `abandon` and the properties suit any thread."""

    def __init__(self, generator: Generator, vocabulary: Vocabulary) -> None:
        self._generator = generator
        self._vocabulary = vocabulary
        self._queue: deque[Chat] = deque()
        self._lock = threading.Lock()
        self.step_seconds = 0.0  # what a step takes, lately

    def __len__(self) -> int:
        """Chats that wait or generate."""
        return len(self._queue)

    def add(self, chat: Chat) -> None:
        """Queue a chat; raises `Busy` where too many wait already."""
        with self._lock:
            waiting = [other for other in self._queue if not other.cancelled]
            if len(waiting) >= MOST_IN_FLIGHT:
                first = waiting[0]
                expected = (first.most_tokens - first.generated) * self.step_seconds
                raise Busy(
                    f"{len(waiting)} chats are waiting already", min(expected, first.deadline - time.monotonic())
                )
            self._queue.append(chat)

    def abandon(self, error: Exception) -> None:
        """Give all of them up; their callers are told `error`."""
        with self._lock:
            chats = list(self._queue)
        for chat in chats:
            chat.cancelled = True
            chat.tell(error)

    def step(self) -> None:
        """Do the next step of the first chat. Only for the engine's thread, as `drop` is; never raises."""
        self.drop()
        with self._lock:
            if not self._queue:
                return
            chat = self._queue[0]
        started = time.monotonic()
        try:
            if chat.generation is None:
                chat.generation = self._generator.start(chat.prompt, chat.sampling)
            token = next(chat.generation.steps)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it and the thread live on
            self._end(chat, error)
            return
        seconds = time.monotonic() - started
        self.step_seconds += _SMOOTHING * (seconds - self.step_seconds) if self.step_seconds else seconds
        if token is not None:
            self._take(chat, token)

    def drop(self) -> None:
        """End the chats that are late, and those whose callers left."""
        now = time.monotonic()
        with self._lock:
            over = [chat for chat in self._queue if chat.cancelled or chat.deadline < now]
        for chat in over:
            if chat.generated:
                self._end(chat, Finished("length"))
            else:
                self._end(chat, Busy("the chat could not be answered in time", 1))

    def _take(self, chat: Chat, token: int) -> None:
        if self._vocabulary.ends_turn(token):
            self._end(chat, Finished("stop"))
            return
        chat.generated += 1
        if text := chat.text.add(self._vocabulary.piece(token)):
            chat.tell(text)
        if chat.text.stopped:
            self._end(chat, Finished("stop"))
        elif chat.generated == chat.most_tokens:
            self._end(chat, Finished("length"))

    def _end(self, chat: Chat, outcome: Finished | Exception) -> None:
        with self._lock:
            self._queue.remove(chat)
        if chat.generation is not None:
            chat.generation.steps.close()
        if chat.cancelled:
            return
        if isinstance(outcome, Finished) and (held := chat.text.end()):
            chat.tell(held)
        chat.tell(outcome)
