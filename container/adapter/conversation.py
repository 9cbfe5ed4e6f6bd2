"""A conversation as the tokens that the model reads: its template's text, in which no message holds a control token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adapter.prompt import ChatTemplate, PromptError
from adapter.vocabulary import Vocabulary

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # Unicode's own for use inside a program


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: str  # system, user or assistant
    content: str


@dataclass(frozen=True)
class ChatPrompt:
    """What the model reads before it answers."""

    tokens: tuple[int, ...]
    boundary: int  # position up to which the conversation's next turn is expected to share the tokens


class ConversationBuilder:
    """Makes the prompts of one model's chats."""

    def __init__(self, template: ChatTemplate, vocabulary: Vocabulary) -> None:
        self._template = template
        self._vocabulary = vocabulary

    def build(self, messages: Sequence[Message]) -> ChatPrompt:
        """The prompt of a conversation. Raises `PromptError` where the model's template cannot write it."""
        if not self._template.has_system_role and any(message.role == "system" for message in messages):
            raise PromptError("the model's chat template has no system role; put the instructions into a user message")
        tokens = self._tokens(messages, for_answer=True)
        without_answer = self._tokens(messages, for_answer=False)
        pairs = zip(tokens, without_answer, strict=False)
        shared = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(without_answer)))
        return ChatPrompt(tuple(tokens), shared)

    def surely_exceeds(self, messages: Sequence[Message], limit: int) -> bool:
        """Whether the prompt of a conversation surely has more than `limit` tokens; far quicker than `build`."""
        text = "\n".join(message.content for message in messages)
        return len(messages) > limit or self._vocabulary.surely_exceeds(text, limit)

    def _tokens(self, messages: Sequence[Message], *, for_answer: bool) -> list[int]:
        """Whatever a template does to a message (it may trim it, or take words out), what a caller wrote stays marked.

        The mark stands behind characters, so that a template that looks for the text of a control token finds none.
        """
        mark = next((mark for mark in _NONCHARACTERS if not any(mark in message.content for message in messages)), None)
        if mark is None:
            raise PromptError("the messages hold every one of Unicode's noncharacters U+FDD0 to U+FDEF")
        rendered = self._template.render(
            [{"role": message.role, "content": self._vocabulary.mark(message.content, mark)} for message in messages],
            for_answer=for_answer,
        )
        first, *others = rendered.split(mark)
        untrusted = bytearray(len(first))
        for part in others:
            if untrusted:
                untrusted[-1] = True
            untrusted += bytes(len(part))
        return self._vocabulary.with_bos(self._vocabulary.tokenize_guarded("".join((first, *others)), untrusted))
