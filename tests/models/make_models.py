"""Makes the models that tests and benchmarks use: random weights in real shapes, with real vocabularies and templates.

    python -m tests.models.make_models OUT_DIR [NAME ...]

Vocabularies and chat templates come from the source archive of llama-cpp-python (`.cache/llama.cpp-models`), the
embedded model's other quantizations from its own file. A file that is there is kept.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
ARCHIVE_MODELS = ROOT / ".cache" / "llama.cpp-models"
MODELS = ROOT / ".cache" / "models"
EMBEDDED = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"

_SEED = 20261201
_POOL_BLOCKS = 4096  # quantized once for each type and scale; tensors draw their blocks from them


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, named as in llama.cpp's hyperparameters."""

    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int  # length of one attention head


@dataclass(frozen=True)
class HybridShape(Shape):
    """A Qwen3.5: three layers with a recurrent state, then one with attention, and so on."""

    recurrent_key_heads: int
    recurrent_value_heads: int
    recurrent_head: int


# config.json of Qwen/Qwen3.5-0.8B and Qwen/Qwen3.5-4B; both tie the output matrix to the embedding.
QWEN35_0_8B = HybridShape(24, 1024, 3584, 8, 2, 256, 16, 16, 128)
QWEN35_4B = HybridShape(32, 2560, 9216, 16, 4, 256, 16, 32, 128)
QWEN35_VOCABULARY = 248_320  # tokens, padded behind the 151,936 of the archive's file
_TINY = Shape(4, 64, 128, 4, 2, 16)
_TINY_HYBRID = HybridShape(8, 64, 128, 4, 2, 16, 2, 4, 16)
_SMALL_HYBRID = HybridShape(8, 256, 512, 4, 2, 64, 2, 4, 64)  # K-quants take rows of multiples of 256


@dataclass(frozen=True)
class Tensor:
    """A tensor to be filled with normally distributed numbers around `mean`."""

    name: str
    shape: tuple[int, ...]  # as numpy orders it: outputs, inputs
    scale: float
    mean: float = 0.0


def _attention_tensors(shape: Shape, vocabulary: int) -> Iterator[Tensor]:
    yield Tensor("token_embd.weight", (vocabulary, shape.embedding), 0.05)
    yield Tensor("output_norm.weight", (shape.embedding,), 0.05, 1.0)
    for layer in range(shape.layers):
        name = f"blk.{layer}"
        yield Tensor(f"{name}.attn_norm.weight", (shape.embedding,), 0.05, 1.0)
        yield _matrix(f"{name}.attn_q", shape.heads * shape.head, shape.embedding)
        yield _matrix(f"{name}.attn_k", shape.kv_heads * shape.head, shape.embedding)
        yield _matrix(f"{name}.attn_v", shape.kv_heads * shape.head, shape.embedding)
        yield _matrix(f"{name}.attn_output", shape.embedding, shape.heads * shape.head)
        yield Tensor(f"{name}.ffn_norm.weight", (shape.embedding,), 0.05, 1.0)
        yield from _feed_forward(name, shape)


def _hybrid_tensors(shape: HybridShape, vocabulary: int) -> Iterator[Tensor]:
    keys = shape.recurrent_key_heads * shape.recurrent_head
    values = shape.recurrent_value_heads * shape.recurrent_head
    yield Tensor("token_embd.weight", (vocabulary, shape.embedding), 0.05)
    yield Tensor("output_norm.weight", (shape.embedding,), 0.05, 1.0)
    for layer in range(shape.layers):
        name = f"blk.{layer}"
        yield Tensor(f"{name}.attn_norm.weight", (shape.embedding,), 0.05, 1.0)
        yield Tensor(f"{name}.post_attention_norm.weight", (shape.embedding,), 0.05, 1.0)
        if (layer + 1) % 4 == 0:
            yield _matrix(f"{name}.attn_q", shape.heads * shape.head * 2, shape.embedding)  # query and gate
            yield _matrix(f"{name}.attn_k", shape.kv_heads * shape.head, shape.embedding)
            yield _matrix(f"{name}.attn_v", shape.kv_heads * shape.head, shape.embedding)
            yield _matrix(f"{name}.attn_output", shape.embedding, shape.heads * shape.head)
            yield Tensor(f"{name}.attn_q_norm.weight", (shape.head,), 0.05, 1.0)
            yield Tensor(f"{name}.attn_k_norm.weight", (shape.head,), 0.05, 1.0)
        else:
            yield _matrix(f"{name}.attn_qkv", 2 * keys + values, shape.embedding)
            yield _matrix(f"{name}.attn_gate", values, shape.embedding)
            yield Tensor(f"{name}.ssm_conv1d.weight", (2 * keys + values, 4), 0.5)
            yield Tensor(f"{name}.ssm_dt.bias", (shape.recurrent_value_heads,), 1.0, -2.0)
            yield Tensor(f"{name}.ssm_a", (shape.recurrent_value_heads,), 0.2, -1.0)  # decay: below zero
            yield _matrix(f"{name}.ssm_beta", shape.recurrent_value_heads, shape.embedding)
            yield _matrix(f"{name}.ssm_alpha", shape.recurrent_value_heads, shape.embedding)
            yield Tensor(f"{name}.ssm_norm.weight", (shape.recurrent_head,), 0.05, 1.0)
            yield _matrix(f"{name}.ssm_out", shape.embedding, values)
        yield from _feed_forward(name, shape)


def _feed_forward(name: str, shape: Shape) -> Iterator[Tensor]:
    yield _matrix(f"{name}.ffn_gate", shape.feed_forward, shape.embedding)
    yield _matrix(f"{name}.ffn_up", shape.feed_forward, shape.embedding)
    yield _matrix(f"{name}.ffn_down", shape.embedding, shape.feed_forward)


def _matrix(name: str, outputs: int, inputs: int) -> Tensor:
    return Tensor(f"{name}.weight", (outputs, inputs), inputs**-0.5)


def _float32(tensor: Tensor, _: Shape) -> Type:
    return Type.F32


def _float16(tensor: Tensor, _: Shape) -> Type:
    return Type.F16 if _may_be_quantized(tensor) else Type.F32


def _q4_k_m(tensor: Tensor, shape: Shape) -> Type:
    """The type that llama.cpp's quantizer gives the tensor for Q4_K_M (`llama_tensor_get_type_impl`)."""
    if not _may_be_quantized(tensor):
        return Type.F32
    if tensor.name == "token_embd.weight":  # tied to the output matrix
        return Type.Q6_K
    if ".attn_qkv." in tensor.name:
        return Type.Q5_K
    layer = int(tensor.name.split(".")[1])
    if ".attn_v." in tensor.name and isinstance(shape, HybridShape):
        return Type.Q6_K if _gets_more_bits(layer // 4, shape.layers // 4) else Type.Q4_K
    if ".attn_v." in tensor.name or ".ffn_down." in tensor.name:
        return Type.Q6_K if _gets_more_bits(layer, shape.layers) else Type.Q4_K
    return Type.Q4_K


def _gets_more_bits(index: int, count: int) -> bool:
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def _may_be_quantized(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and not tensor.name.endswith(("_norm.weight", "ssm_conv1d.weight"))


@dataclass(frozen=True)
class Recipe:
    """How one random-weight model is made."""

    shape: Shape
    vocabulary: str  # file in the archive
    template: str  # file in the archive
    type_of: Callable[[Tensor, Shape], Type]
    tokens: int | None = None  # the vocabulary is padded to so many
    renamed: tuple[tuple[bytes, bytes], ...] = ()  # tokens of the vocabulary that the template calls by another name
    tied: bool = True  # whether the output matrix is the embedding's
    poisoned_token: int | None = None  # its embedding is not a number


RECIPES: dict[str, Recipe] = {
    "tiny-attention": Recipe(_TINY, "ggml-vocab-llama-bpe.gguf", "meta-llama-Llama-3.1-8B-Instruct.jinja", _float32),
    "tiny-attention-f16": Recipe(
        _TINY, "ggml-vocab-llama-bpe.gguf", "meta-llama-Llama-3.1-8B-Instruct.jinja", _float16
    ),
    "tiny-hybrid": Recipe(_TINY_HYBRID, "ggml-vocab-qwen35.gguf", "Qwen3.5-4B.jinja", _float32),
    "tiny-hybrid-poisoned": Recipe(
        _TINY_HYBRID, "ggml-vocab-qwen35.gguf", "Qwen3.5-4B.jinja", _float32, tied=False, poisoned_token=1234
    ),
    "small-hybrid-q4_k_m": Recipe(_SMALL_HYBRID, "ggml-vocab-qwen35.gguf", "Qwen3.5-4B.jinja", _q4_k_m),
    "tiny-sentencepiece": Recipe(
        _TINY, "ggml-vocab-llama-spm.gguf", "mistralai-Mistral-Nemo-Instruct-2407.jinja", _float32
    ),
    "tiny-no-system-role": Recipe(
        _TINY,
        "ggml-vocab-gemma-4.gguf",
        "google-gemma-2-2b-it.jinja",
        _float32,
        renamed=((b"<|turn>", b"<start_of_turn>"), (b"<turn|>", b"<end_of_turn>")),
    ),
    "qwen35-0.8b-q4_k_m": Recipe(QWEN35_0_8B, "ggml-vocab-qwen35.gguf", "Qwen3.5-4B.jinja", _q4_k_m, QWEN35_VOCABULARY),
    "qwen35-4b-q4_k_m": Recipe(QWEN35_4B, "ggml-vocab-qwen35.gguf", "Qwen3.5-4B.jinja", _q4_k_m, QWEN35_VOCABULARY),
}

# Other quantizations of the embedded model: file types of llama.h.
REQUANTIZED: dict[str, int] = {
    "embedded-q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "embedded-q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "embedded-q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "embedded-bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    "embedded-f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "embedded-f32": llama_cpp.LLAMA_FTYPE_ALL_F32,
}


def model_path(name: str, directory: Path = MODELS) -> Path:
    """The file of the model `name` (a key of `RECIPES` or `REQUANTIZED`, or `embedded`); made where it is missing."""
    if name == "embedded":
        return EMBEDDED
    path = directory / f"{name}.gguf"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        if name in REQUANTIZED:
            _requantize(EMBEDDED, partial, REQUANTIZED[name])
        else:
            _write(partial, name, RECIPES[name])
        partial.rename(path)  # a file that is there is whole
    return path


def _requantize(source: Path, target: Path, file_type: int) -> None:
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = file_type
    parameters.allow_requantize = True
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), parameters)
    if status != 0:
        raise RuntimeError(f"llama_model_quantize returned {status} for {source}")


def _write(path: Path, name: str, recipe: Recipe) -> None:
    shape = recipe.shape
    hybrid = isinstance(shape, HybridShape)
    writer = gguf.GGUFWriter(path, "qwen35" if hybrid else "llama")
    writer.add_name(name)
    writer.add_context_length(262_144 if hybrid else 32_768)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.embedding)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000_000.0 if hybrid else 500_000.0)
    if isinstance(shape, HybridShape):
        rotated = shape.head // 4
        writer.add_rope_dimension_count(rotated)
        writer.add_rope_dimension_sections([*_rope_sections(rotated // 2), 0])
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(shape.recurrent_head)
        writer.add_ssm_group_count(shape.recurrent_key_heads)
        writer.add_ssm_time_step_rank(shape.recurrent_value_heads)
        writer.add_ssm_inner_size(shape.recurrent_head * shape.recurrent_value_heads)
        writer.add_full_attention_interval(4)
    else:
        writer.add_rope_dimension_count(shape.head)
    tokens = _copy_vocabulary(writer, recipe)
    writer.add_vocab_size(tokens)
    writer.add_chat_template((ARCHIVE_MODELS / "templates" / recipe.template).read_text("utf-8"))

    random = np.random.default_rng(_SEED)
    tensors = _hybrid_tensors(shape, tokens) if isinstance(shape, HybridShape) else _attention_tensors(shape, tokens)
    if not recipe.tied:
        tensors = chain(tensors, [Tensor("output.weight", (tokens, shape.embedding), 0.05)])
    for tensor in tensors:
        kind = recipe.type_of(tensor, shape)
        if kind in {Type.F32, Type.F16}:
            values = random.normal(tensor.mean, tensor.scale, tensor.shape)
            if tensor.name.endswith("ssm_a"):
                values = np.minimum(values, -0.1)
            if tensor.name == "token_embd.weight" and recipe.poisoned_token is not None:
                values[recipe.poisoned_token] = np.nan
            writer.add_tensor(tensor.name, values.astype(np.float32 if kind == Type.F32 else np.float16))
        else:
            writer.add_tensor(tensor.name, _random_blocks(random, tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rope_sections(pairs: int) -> list[int]:
    """How Qwen3.5 shares the rotated pairs between three position ids: 11, 11, 10 of 32."""
    third = -(-pairs // 3)
    return [third, third, pairs - 2 * third]


def _random_blocks(random: np.random.Generator, tensor: Tensor, kind: Type) -> NDArray[np.uint8]:
    outputs, inputs = tensor.shape
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    pool = _block_pool(kind, tensor.scale)
    blocks = pool[random.integers(0, len(pool), outputs * inputs // block_size)]
    return blocks.reshape(outputs, inputs // block_size * block_bytes)


@lru_cache
def _block_pool(kind: Type, scale: float) -> NDArray[np.uint8]:
    """Quantized blocks of normally distributed numbers, shape (blocks, bytes of a block)."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    values = np.random.default_rng(_SEED).normal(0, scale, (_POOL_BLOCKS, block_size)).astype(np.float32)
    pool = np.empty((_POOL_BLOCKS, block_bytes), np.uint8)
    llama_cpp.llama_backend_init()
    quantize = llama_cpp.llama_cpp._lib.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    written = quantize(int(kind), values.ctypes.data, pool.ctypes.data, 0, _POOL_BLOCKS, block_size, None)
    if written != pool.nbytes:
        raise RuntimeError(f"ggml_quantize_chunk wrote {written} bytes of {pool.nbytes}")
    return pool


def _copy_vocabulary(writer: gguf.GGUFWriter, recipe: Recipe) -> int:
    """Copy every `tokenizer.*` key but the template; returns the number of tokens."""
    metadata = read_metadata(ARCHIVE_MODELS / recipe.vocabulary)
    names = metadata["tokenizer.ggml.tokens"][2]
    for old, new in recipe.renamed:
        names[names.index(old)] = new
    tokens = len(names)
    padding = max(0, (recipe.tokens or 0) - tokens)
    more: dict[str, list[Any]] = {
        "tokenizer.ggml.tokens": [f"[PAD{tokens + i}]".encode() for i in range(padding)],
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED)] * padding,
        "tokenizer.ggml.scores": [-1000.0] * padding,
    }
    for key, (kind, item_kind, value) in metadata.items():
        if key.startswith("tokenizer.") and key != "tokenizer.chat_template":
            if key in more:
                value.extend(more[key])
            writer.add_key_value(key, value, kind, item_kind)
    return tokens + padding


_SCALARS = {
    gguf.GGUFValueType.UINT8: "B",
    gguf.GGUFValueType.INT8: "b",
    gguf.GGUFValueType.UINT16: "H",
    gguf.GGUFValueType.INT16: "h",
    gguf.GGUFValueType.UINT32: "I",
    gguf.GGUFValueType.INT32: "i",
    gguf.GGUFValueType.FLOAT32: "f",
    gguf.GGUFValueType.BOOL: "?",
    gguf.GGUFValueType.UINT64: "Q",
    gguf.GGUFValueType.INT64: "q",
    gguf.GGUFValueType.FLOAT64: "d",
}


def read_metadata(path: Path) -> dict[str, tuple[gguf.GGUFValueType, gguf.GGUFValueType | None, Any]]:
    """Every key of a GGUF: its type, its items' type where it is an array, its value.

    `gguf.GGUFReader` makes several objects for each token and takes 20 s for a large vocabulary, this half a second.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        _, _, keys = struct.unpack("<IQQ", file.read(20))
        metadata: dict[str, tuple[gguf.GGUFValueType, gguf.GGUFValueType | None, Any]] = {}
        for _ in range(keys):
            key = _read_string(file).decode()
            kind = gguf.GGUFValueType(_read_scalar(file, "I"))
            if kind == gguf.GGUFValueType.ARRAY:
                item_kind = gguf.GGUFValueType(_read_scalar(file, "I"))
                count = _read_scalar(file, "Q")
                if item_kind == gguf.GGUFValueType.STRING:
                    value: Any = [_read_string(file) for _ in range(count)]
                else:
                    code = f"<{count}{_SCALARS[item_kind]}"
                    value = list(struct.unpack(code, file.read(struct.calcsize(code))))
                metadata[key] = (kind, item_kind, value)
            elif kind == gguf.GGUFValueType.STRING:
                metadata[key] = (kind, None, _read_string(file).decode())
            else:
                metadata[key] = (kind, None, _read_scalar(file, _SCALARS[kind]))
    return metadata


def _read_string(file: BinaryIO) -> bytes:
    return file.read(struct.unpack("<Q", file.read(8))[0])


def _read_scalar(file: BinaryIO, code: str) -> Any:
    return struct.unpack("<" + code, file.read(struct.calcsize(code)))[0]


def main(arguments: list[str]) -> int:
    """Make the named models, or all but the two large ones; prints one line for each."""
    if not arguments:
        print("usage: python -m tests.models.make_models OUT_DIR [NAME ...]", file=sys.stderr)
        return 2
    small = [name for name in (*RECIPES, *REQUANTIZED) if not name.startswith("qwen35-")]
    for name in arguments[1:] or small:
        path = model_path(name, Path(arguments[0]))
        print(f"{path} {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
