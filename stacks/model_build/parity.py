"""Whether the vocabulary inside a GGUF tokenizes as the model's reference tokenizer does, over the texts of a corpus.

A conversion that went wrong shows nowhere else: the endpoint would answer, and worse than the model can.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
from tokenizers import Tokenizer

# Its texts are in Unicode's form NFC: many references normalize to it, and llama.cpp takes a text as it is.
CORPUS = Path(__file__).with_name("corpus.json")
# How much of a text and of its tokens a message shows.
_SHOWN = 60


class ParityError(Exception):
    """The two tokenizers differ; the message is one line that shows where."""


def compare(gguf: Path, tokenizer_json: Path) -> dict[str, Any]:
    """Compare the GGUF's vocabulary with the reference, and report what was compared.

    Every text must have the same tokens, as plain text; so must every control token of the reference that the GGUF's
    chat template writes, between two texts. Raises ParityError at the first difference.
    """
    texts: list[str] = json.loads(CORPUS.read_text(encoding="utf-8"))
    reference = _reference(tokenizer_json)
    with _vocabulary(gguf) as (vocabulary, template):
        for text in texts:
            _require_same(text, vocabulary.tokens(text, special=False), reference)
        written = [
            token.content for token in reference.get_added_tokens_decoder().values() if token.content in template
        ]
        for control in written:
            text = f"{control}user\nWhich queue?{control}\n{control}{control}"
            _require_same(text, vocabulary.tokens(text, special=True), reference)
    return {
        "texts": len(texts),
        "control_tokens": len(written),
        "library": f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}",
        "reference": f"tokenizers {importlib.metadata.version('tokenizers')}",
    }


def _reference(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ParityError(f"{path.name} is no tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _require_same(text: str, found: Sequence[int], reference: Tokenizer) -> None:
    expected = reference.encode(text, add_special_tokens=False).ids
    if list(found) == expected:
        return
    at = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(found), len(expected)) if at is None else at
    raise ParityError(
        f"the GGUF's vocabulary and the reference tokenizer differ at token {first} of {text[:_SHOWN]!r}: "
        f"{_shown(found[first:])} and {_shown(expected[first:])}"
    )


def _shown(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))[:_SHOWN] or "nothing"


class _Vocabulary:
    def __init__(self, pointer: Any) -> None:
        self._vocab = llama_cpp.llama_model_get_vocab(pointer)

    def tokens(self, text: str, *, special: bool) -> list[int]:
        """The text's tokens, with no token added; with `special` control tokens are read as such."""
        data = text.encode()
        # A byte is a token at worst, but for a space or two that some vocabularies put before a text.
        size = len(data) + 8
        buffer = (llama_cpp.llama_token * size)()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), buffer, size, False, special)
        return list(buffer[:count])


@contextmanager
def _vocabulary(gguf: Path) -> Iterator[tuple[_Vocabulary, str]]:
    """The GGUF's vocabulary and its chat template, without the weights."""
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p())
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    pointer = llama_cpp.llama_model_load_from_file(str(gguf).encode(), parameters)
    if not pointer:
        raise ParityError(f"llama.cpp cannot read the vocabulary of {gguf.name}")
    try:
        template = llama_cpp.llama_model_chat_template(pointer, None)
        yield _Vocabulary(pointer), (template or b"").decode()
    finally:
        llama_cpp.llama_model_free(pointer)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """llama.cpp writes a line for each of the file's entries."""
