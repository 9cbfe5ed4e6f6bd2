"""A decision as the text and the tokens that the model reads: `direct-options-v1` and `criteria-first-v1`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from adapter.slots import Slot, slots_after, verify_slots
from adapter.vocabulary import Vocabulary

Layout = Literal["state-first", "criteria-first"]

SYSTEM = (
    "Apply the supplied criterion to the supplied evidence. Choose exactly one listed option. "
    "Respond with only its uppercase letter, with no explanation or reasoning."
)
VERSIONS: dict[Layout, str] = {"state-first": "direct-options-v1", "criteria-first": "criteria-first-v1"}

# Stand-ins for the two messages while a template is rendered: private-use characters, which no template trims.
_SYSTEM_MARK = "\ue000system\ue001"
_USER_MARK = "\ue000user\ue001"
_LONGEST_TOKEN = 256  # characters; vocabularies' longest are runs of blanks of about half of it


class PromptError(ValueError):
    """A prompt cannot be made from this template or text; the message is one sentence."""


@dataclass(frozen=True)
class Prompt:
    """What the model reads for one decision, and where its answer is read."""

    text: str
    version: str
    tokens: tuple[int, ...]
    boundaries: tuple[int, ...]  # positions up to which other prompts may share the tokens, ascending
    slots: tuple[Slot, ...]  # one for each option, in order

    @property
    def sha256(self) -> str:
        """SHA-256 of the rendered text, in hex."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


class ChatTemplate:
    """A chat template, rendered once with stand-ins: what it writes around a system and a user message."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        """Raises `PromptError` where the template cannot be used for a decision."""
        self._template = _compile(source)
        self._specials = {"bos_token": bos, "eos_token": eos}
        with_system = self._try_render(
            [{"role": "system", "content": _SYSTEM_MARK}, {"role": "user", "content": _USER_MARK}]
        )
        self.has_system_role = with_system is not None and with_system.count(_SYSTEM_MARK) == 1
        if with_system is not None and self.has_system_role:
            skeleton = with_system
        else:  # no system role: the instructions open the user's message, as such models' own examples do
            skeleton = self.render([{"role": "user", "content": f"{_SYSTEM_MARK}\n\n{_USER_MARK}"}])
        if skeleton.count(_USER_MARK) != 1 or skeleton.count(_SYSTEM_MARK) != 1:
            raise PromptError("the model's chat template does not write the system and the user message once each")
        head, _, rest = skeleton.partition(_USER_MARK)
        self.head = head.replace(_SYSTEM_MARK, SYSTEM)
        self.tail = rest
        if _SYSTEM_MARK in rest:
            raise PromptError("the model's chat template writes the system message behind the user's")

    def render(self, messages: Sequence[dict[str, Any]], *, for_answer: bool = True) -> str:
        """The template's text for `messages`, without thinking, and unless told otherwise ready for an answer.

        Raises `PromptError` with the template's own complaint.
        """
        try:
            return str(
                self._template.render(
                    messages=messages, add_generation_prompt=for_answer, enable_thinking=False, **self._specials
                )
            )
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise PromptError(f"the model's chat template refuses the messages: {error}") from error

    def _try_render(self, messages: Sequence[dict[str, Any]]) -> str | None:
        try:
            return self.render(messages)
        except PromptError:
            return None


class PromptBuilder:
    """Makes the prompts of one model."""

    def __init__(self, template: ChatTemplate, vocabulary: Vocabulary) -> None:
        self._template = template
        self._vocabulary = vocabulary
        run = vocabulary.from_last_control(template.tail)
        self._slots_see_message = run is None  # no control token behind the message: its text may change the slots
        self._run = template.tail if run is None else run

    def build(self, state: Any, question: str, options: Sequence[str], layout: Layout = "state-first") -> Prompt:
        """The prompt that asks `question` of `state` with the descriptions `options`.

        `state` is a JSON value. Raises `SlotError` where the vocabulary has too few answer slots.
        """
        slots = slots_after(self._vocabulary, self._run, len(options))
        content, shared = _user_content(state, question, [slot.code for slot in slots], options, layout)
        parts = ((self._template.head, True), (content, False), (self._template.tail, True))
        text = "".join(part for part, _ in parts)
        if self._slots_see_message:
            # The end is enough: no tokenizer merges further back than its longest token.
            verify_slots(self._vocabulary, (content + self._template.tail)[-_LONGEST_TOKEN:], slots)
        tokens = self._vocabulary.with_bos(self._vocabulary.tokenize_parts(parts))
        before_state, before_close = (self._common(tokens, content[:length]) for length in shared)
        return Prompt(
            text=text,
            version=VERSIONS[layout],
            tokens=tuple(tokens),
            # Where a longer state goes on, its first token may join with the last one before.
            boundaries=(before_state, max(before_state, before_close - 1)),
            slots=slots,
        )

    def surely_exceeds(self, state: Any, question: str, options: Sequence[str], limit: int) -> bool:
        """Whether a prompt of these surely has more than `limit` tokens; far quicker than `build` where it has."""
        return self._vocabulary.surely_exceeds(json.dumps([state, question, *options], ensure_ascii=False), limit)

    def head(self) -> tuple[int, ...]:
        """The tokens with which every prompt of the default layout begins."""
        prompt = self.build("", "", ["", ""])
        return prompt.tokens[: prompt.boundaries[0]]

    def _common(self, tokens: Sequence[int], content: str) -> int:
        """How many of a prompt's tokens do not depend on what follows `content`, the beginning of its message."""
        parts = ((self._template.head, True), (content, False))
        beginning = self._vocabulary.with_bos(self._vocabulary.tokenize_parts(parts))
        pairs = zip(beginning, tokens, strict=False)
        return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(beginning), len(tokens)))


def _user_content(
    state: Any, question: str, codes: Sequence[str], options: Sequence[str], layout: Layout
) -> tuple[str, list[int]]:
    """The user's message, and the lengths of its beginnings that other prompts are likely to share.

    A state is taken to be shared up to its closing quotes and brackets: a transcript grows before them.
    """
    evidence = {"evidence": state}
    criterion = {
        "criterion": question,
        "options": [{"letter": code, "description": text} for code, text in zip(codes, options, strict=True)],
    }
    value = {**evidence, **criterion} if layout == "state-first" else {**criterion, **evidence}
    content = json.dumps(value, ensure_ascii=False)
    if layout == "state-first":
        first = len('{"evidence": ')
        end = len(json.dumps(evidence, ensure_ascii=False)) - 1
    else:
        first = len(json.dumps(criterion, ensure_ascii=False)[:-1] + ', "evidence": ')
        end = len(content)
    return content, [first, max(first, len(content[:end].rstrip('"]}')))]


def _compile(source: str) -> Any:
    """The template in the environment that Hugging Face's `apply_chat_template` documents, in jinja2's sandbox.

    `strftime_now` tells a fixed day, Llama 3's own fallback: an answer must not depend on the date.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = date(2024, 7, 26).strftime
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise PromptError(f"the model's chat template is not valid: {error}") from error


def _raise(message: str) -> None:
    raise TemplateError(message)


class _GenerationTag(Extension):
    """`{% generation %}` marks text for training; for inference its body is written as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
