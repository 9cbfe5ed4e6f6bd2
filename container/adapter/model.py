"""The llama.cpp library and the model that it loads: checked layouts, backends, logs, weights, metadata."""

from __future__ import annotations

import ctypes
import logging
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp

_log = logging.getLogger(__name__)
_LOG_LEVEL_ERROR = 4  # enum ggml_log_level of ggml.h; the binding has no name for it
_DEVICE_TYPES_GPU = {1, 2}  # enum ggml_backend_dev_type of ggml-backend.h: GPU, integrated GPU
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")  # llama-model.cpp, the only place that tells
_GUARD_BYTES = 256
_UNTOUCHED = 0xA5

# Defaults that llama.cpp's sources set (llama-model.cpp, llama-context.cpp), from both ends of each struct: where the
# binding's layout differs from the library's, some of them are read from the wrong place.
_MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "rope_scaling_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
}


class ModelLoadError(RuntimeError):
    """llama.cpp, its backends or the model cannot be used; the message is one line."""


@dataclass(frozen=True)
class Device:
    """A device that a loaded backend offers."""

    name: str
    description: str
    is_gpu: bool


class Model:
    """A GGUF loaded by llama.cpp: weights and metadata."""

    def __init__(self, path: Path, *, gpu_layers: int = 0, library_dir: Path | None = None) -> None:
        """Load the file with `gpu_layers` layers on the GPU, -1 for all.

        `library_dir` holds llama.cpp's backends where they are plugins. Raises `ModelLoadError` where the library is
        not the one the binding was made for, where fewer layers than asked for went to the GPU, or with llama.cpp's
        last complaint.
        """
        check_layouts()
        _log_lines.clear()
        llama_cpp.llama_log_set(_forward_log, ctypes.c_void_p())
        if library_dir is not None:
            _library().ggml_backend_load_all_from_path(str(library_dir).encode())
        llama_cpp.llama_backend_init()
        self.devices = devices()
        if not self.devices:
            raise ModelLoadError(
                "llama.cpp has no backend, not even for the CPU: set SEMIF_LLAMA_CPP_LIB_DIR to the plugins' directory"
            )
        if gpu_layers != 0 and not any(device.is_gpu for device in self.devices):
            names = ", ".join(device.name for device in self.devices)
            raise ModelLoadError(f"SEMIF_N_GPU_LAYERS={gpu_layers}, but no GPU backend is loaded (devices: {names})")
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        self.pointer: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.pointer:
            complaints = [text for level, text in _log_lines if level >= _LOG_LEVEL_ERROR]
            raise ModelLoadError(f"llama.cpp cannot load {path}: {complaints[-1] if complaints else 'no reason given'}")
        self.path = path
        self.gpu_layers = _offloaded_layers(gpu_layers, [text for _, text in _log_lines])
        vocabulary = llama_cpp.llama_model_get_vocab(self.pointer)
        self.vocabulary_size: int = llama_cpp.llama_vocab_n_tokens(vocabulary)

    @property
    def device(self) -> str:
        """What evaluates: the GPU's description where layers went there, else the CPU's."""
        wanted = [device for device in self.devices if device.is_gpu == (self.gpu_layers > 0)]
        return ", ".join(device.description for device in wanted)

    @property
    def can_be_cut(self) -> bool:
        """Whether llama.cpp can drop the end of one of its sequences: no recurrent state, no sliding window."""
        return not (
            llama_cpp.llama_model_is_recurrent(self.pointer)
            or llama_cpp.llama_model_is_hybrid(self.pointer)
            or llama_cpp.llama_model_n_swa(self.pointer)
        )

    def metadata(self, key: str) -> str | None:
        """A value of the GGUF's metadata as text; None where the key is absent."""
        buffer = ctypes.create_string_buffer(1)
        size = llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, 1)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size + 1)
        return buffer.value.decode("utf-8", errors="replace")

    def close(self) -> None:
        """Free the weights. Contexts made from them must be closed before."""
        if self.pointer:
            llama_cpp.llama_model_free(self.pointer)
            self.pointer = None


def library_version() -> str:
    """The loaded library's version of itself."""
    version = _library().llama_version
    version.restype = ctypes.c_char_p
    return str(version().decode())


def devices() -> list[Device]:
    """What the loaded backends offer."""
    library = _library()
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    for function in (library.ggml_backend_dev_name, library.ggml_backend_dev_description):
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_void_p]
    library.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    found = []
    for index in range(library.ggml_backend_dev_count()):
        device = library.ggml_backend_dev_get(index)
        found.append(
            Device(
                name=library.ggml_backend_dev_name(device).decode(),
                description=library.ggml_backend_dev_description(device).decode(),
                is_gpu=library.ggml_backend_dev_type(device) in _DEVICE_TYPES_GPU,
            )
        )
    return found


def check_layouts() -> None:
    """Compare the binding's struct layouts with the loaded library's.

    A library of another version would read and write past fields and corrupt memory without a word. Raises
    `ModelLoadError` that names both versions.
    """
    for kind, function, expected in (
        (llama_cpp.llama_model_params, "llama_model_default_params", _MODEL_DEFAULTS),
        (llama_cpp.llama_context_params, "llama_context_default_params", _CONTEXT_DEFAULTS),
    ):
        wrong = layout_faults(kind, getattr(_library(), function), expected)
        if wrong:
            raise ModelLoadError(
                f"llama-cpp-python {llama_cpp.__version__} does not fit the loaded libllama {library_version()}: "
                f"{function} has {', '.join(wrong)}"
            )


def layout_faults(kind: type[ctypes.Structure], function: Any, expected: dict[str, Any]) -> list[str]:
    """What is wrong, read as `kind`, with the struct that `function` returns by value: fields, and its size."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    value: Any = ctypes.CFUNCTYPE(kind)(address)()
    faults = [
        f"{name} {getattr(value, name)!r} instead of {right!r}"
        for name, right in expected.items()
        if getattr(value, name) != right
    ]
    if platform.machine() == "x86_64":  # its calling convention lets the caller say where a large struct is written
        size = ctypes.sizeof(kind)
        memory = (ctypes.c_ubyte * (size + _GUARD_BYTES))(*[_UNTOUCHED] * (size + _GUARD_BYTES))
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.addressof(memory))
        written = max(index for index, byte in enumerate(memory, 1) if byte != _UNTOUCHED)
        if not size - ctypes.alignment(kind) < written <= size:
            faults.append(f"{written} bytes instead of {size}")
    return faults


def _offloaded_layers(asked: int, log: list[str]) -> int:
    """Layers that went to the GPU, told by llama.cpp's log. Raises `ModelLoadError` where they are fewer than asked."""
    counts = next((match.groups() for text in log if (match := _OFFLOADED.search(text))), ("0", "0"))
    went, total = map(int, counts)
    wanted = total if asked == -1 else min(asked, total)
    if asked != 0 and (went < wanted or total == 0):
        raise ModelLoadError(f"SEMIF_N_GPU_LAYERS={asked}, but only {went} of {total} layers went to the GPU")
    return went if asked != 0 else 0


def _library() -> Any:
    return llama_cpp.llama_cpp._lib  # noqa: SLF001 - the binding has no names for ggml's backend functions


_log_lines: list[tuple[int, str]] = []  # what llama.cpp said while the latest model was loaded, and its errors since


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator] # a ctypes function type
def _forward_log(level: int, text: bytes, _: Any) -> None:
    line = text.decode("utf-8", errors="replace").strip()
    if level >= _LOG_LEVEL_ERROR or _OFFLOADED.search(line):
        _log_lines.append((level, line))
        del _log_lines[:-50]
    if line:
        _log.debug("llama.cpp: %s", line)
