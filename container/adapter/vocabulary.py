"""Text to tokens with the GGUF's own vocabulary, such that a caller's text never becomes a control token."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence

import llama_cpp

# Elements of HTML that some vocabularies (Gemma's) hold as added tokens: ordinary text, which their reference reads so.
_HTML = re.compile(
    r"</?(?:a|b|blockquote|body|br|caption|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|s|span|strong|sub|sup|table|tbody|td|"
    r"tfoot|th|thead|tr|u|ul)>"
)

_FIRST_LOOK = 4  # characters a token: about what English has


class Vocabulary:
    """The tokenizer inside a loaded GGUF. Thread-safe: llama.cpp's tokenizer reads only constant data."""

    def __init__(self, model: ctypes.c_void_p) -> None:
        """`model` is a llama_model, whose owner keeps it alive for as long as its vocabulary is used."""
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self.size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.bos_token: int = llama_cpp.llama_vocab_bos(self._vocab)
        self.bos = self._special_text(self.bos_token)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(self._vocab)
        self.eos = self._special_text(llama_cpp.llama_vocab_eos(self._vocab))
        control = {token: text for token in range(self.size) if (text := self._control_text(token))}
        self.control_tokens = frozenset(control)
        # SentencePiece puts a space before every text: a piece that continues one is tokenized behind this, which is
        # then taken off again.
        is_sentencepiece = llama_cpp.llama_vocab_type(self._vocab) == llama_cpp.LLAMA_VOCAB_TYPE_SPM
        self._before_piece = "\n" if is_sentencepiece else ""
        texts = sorted(set(control.values()), key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        firsts = "".join(sorted({text[0] for text in texts}))
        self._first_pattern = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of `text`, without a beginning-of-sequence token of the tokenizer's own.

        With `special`, the text of a control token becomes that token: only for text that the template wrote.
        """
        data = text.encode("utf-8")
        size = len(data) + 8
        while True:
            buffer = (llama_cpp.llama_token * size)()
            count = llama_cpp.llama_tokenize(self._vocab, data, len(data), buffer, size, False, special)
            if count >= 0:
                return buffer[:count]
            size = -count

    def surely_exceeds(self, text: str, limit: int) -> bool:
        """Whether `text` has more than `limit` tokens, as its beginning shows: all of it would take seconds a megabyte.

        A beginning is taken for enough where it has twice as many: what follows it changes the tokens of its end only.
        """
        length = _FIRST_LOOK * limit
        while length < len(text):
            if len(self.tokenize(text[:length], special=False)) > 2 * limit:
                return True
            length *= 4
        return False

    def tokenize_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Tokens of the concatenation of `parts`, pairs of text and whether the template wrote it."""
        texts, untrusted = [], bytearray()
        for text, trusted in parts:
            texts.append(text)
            untrusted += bytes([not trusted]) * len(text)
        return self.tokenize_guarded("".join(texts), untrusted)

    def tokenize_guarded(self, text: str, untrusted: Sequence[int]) -> list[int]:
        """Tokens of `text`, none of them a control token that begins at a character whose `untrusted` is not 0.

        Where no control token's text begins at such a character this is exactly the joint tokenization. Where one does,
        the text is cut inside that string, so that each piece holds none, and the pieces are tokenized alone.
        """
        pieces, start, position = [], 0, 0
        while match := self._control_pattern and self._control_pattern.search(text, position):
            position = match.start() + 1  # look on from behind the first character: control texts may overlap
            if untrusted[match.start()]:
                pieces.append(text[start:position])
                start = position
        pieces.append(text[start:])
        tokens = self.tokenize(pieces[0])
        taken_off = len(self.tokenize(self._before_piece))
        for piece in pieces[1:]:
            tokens += self.tokenize(self._before_piece + piece)[taken_off:]
        return tokens

    def mark(self, text: str, mark: str) -> str:
        """`text` with `mark` behind every character at which a control token's text could begin."""
        return self._first_pattern.sub(rf"\g<0>{mark}", text) if self._first_pattern else text

    def with_bos(self, tokens: list[int]) -> list[int]:
        """Where the vocabulary asks for a beginning-of-sequence token and the template wrote none, put it in front."""
        return tokens if not self.adds_bos or tokens[:1] == [self.bos_token] else [self.bos_token, *tokens]

    def from_last_control(self, text: str) -> str | None:
        """The part of `text` that begins with its last control token; None where it has none.

        The token belongs to it: some (Phi-3's) swallow the white space behind them.
        """
        last = None
        for match in self._control_pattern.finditer(text) if self._control_pattern else ():
            last = match.start()
        return None if last is None else text[last:]

    def ends_turn(self, token: int) -> bool:
        """Whether the model says with this token that it has finished."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def piece(self, token: int) -> bytes:
        """What a generated token adds to the text, in UTF-8 and possibly not whole; nothing for a control token."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def text(self, token: int) -> str:
        """The vocabulary's own spelling of a token."""
        raw = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return bytes(raw).decode("utf-8", errors="replace") if raw else ""

    def count_control(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` are control tokens."""
        return sum(token in self.control_tokens for token in tokens)

    def _special_text(self, token: int) -> str:
        return self.text(token) if token >= 0 else ""

    def _control_text(self, token: int) -> str | None:
        """The text of a token that steers the model; None for what is ordinary text.

        Added tokens that are written like markup count whatever the vocabulary calls them: Qwen3.5 lists <think> and
        <tool_call> as "user defined", and llama.cpp matches such tokens in plain text too.
        """
        attributes = llama_cpp.llama_vocab_get_attr(self._vocab, token)
        if attributes & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL:
            return self.text(token)
        if attributes & (llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN):
            text = self.text(token)
            words = text.replace("\u2581", " ").strip()  # SentencePiece's visible space
            if len(text) > 1 and words and not re.fullmatch(r"\w+", words) and not _HTML.fullmatch(text):
                return text
        return None
