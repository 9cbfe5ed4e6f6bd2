"""Reference tokenizers for tests, as `tokenizer.json`, made from the vocabularies inside real GGUF files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

CACHE = Path(__file__).resolve().parents[2] / ".cache"
SMOLLM2 = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN35 = CACHE / "llama.cpp-models" / "ggml-vocab-qwen35.gguf"
GPT2 = CACHE / "llama.cpp-models" / "ggml-vocab-gpt-2.gguf"

# As the models' published tokenizer.json files split a text, written anew from llama.cpp's description of them.
SPLITS: dict[Path, list[Any]] = {
    SMOLLM2: [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    GPT2: [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    QWEN35: [
        pre_tokenizers.Split(
            Regex(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
                r"\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}
CONTROL = 3  # llama.cpp's type of control tokens


def metadata(path: Path) -> dict[str, Any]:
    """A GGUF's metadata: gguf's own reader takes half a minute for a vocabulary."""
    data = path.read_bytes() if path.stat().st_size < 1 << 23 else path.open("rb").read(1 << 23)
    position = 16  # magic, version, number of tensors

    def number(format_: str) -> Any:
        nonlocal position
        (value,) = struct.unpack_from(format_, data, position)
        position += struct.calcsize(format_)
        return value

    def text() -> str:
        nonlocal position
        length = number("<Q")
        position += length
        return data[position - length : position].decode()

    formats = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?")))
    formats |= {10: "<Q", 11: "<q", 12: "<d"}

    def value(type_: int) -> Any:
        if type_ == 8:
            return text()
        if type_ == 9:
            element, count = number("<I"), number("<Q")
            return [value(element) for _ in range(count)]
        return number(formats[type_])

    return {text(): value(number("<I")) for _ in range(number("<Q"))}


def reference(gguf: Path, target: Path) -> Path:
    """The tokenizer.json that the GGUF's vocabulary was made from, as far as it decides about tokens."""
    fields = metadata(gguf)
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[gguf])
    types = fields["tokenizer.ggml.token_type"]
    control = [token for token, type_ in zip(tokens, types, strict=True) if type_ == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(target))
    return target
