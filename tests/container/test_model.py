"""The checks before a model is used: struct layouts, backends, layers on the GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import pytest

from adapter import model as module
from adapter.model import Model, ModelLoadError, check_layouts, layout_faults
from tests.models.make_models import model_path

FUNCTION = llama_cpp.llama_cpp._lib.llama_context_default_params
FIELDS = llama_cpp.llama_context_params._fields_


def test_the_binding_fits_its_own_library() -> None:
    check_layouts()


@pytest.mark.parametrize("at", [0, 4, 22, len(FIELDS)])
def test_a_field_too_many_is_noticed(at: int) -> None:
    class Other(ctypes.Structure):
        _fields_ = (*FIELDS[:at], ("new", ctypes.c_int64), *FIELDS[at:])

    faults = layout_faults(Other, FUNCTION, {"n_ctx": 512, "n_batch": 2048, "kv_unified": False, "op_offload": True})
    assert any("bytes instead of" in fault for fault in faults)


@pytest.mark.parametrize("name", ["n_batch", "flash_attn_type", "offload_kqv", "ctx_other"])
def test_a_field_too_few_is_noticed(name: str) -> None:
    class Other(ctypes.Structure):
        _fields_ = tuple(one for one in FIELDS if one[0] != name)

    known = {field: value for field, value in module._CONTEXT_DEFAULTS.items() if field != name}
    assert layout_faults(Other, FUNCTION, known)


def test_a_mismatch_stops_the_start_and_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._CONTEXT_DEFAULTS, "n_ubatch", 513)
    with pytest.raises(ModelLoadError) as caught:
        Model(model_path("tiny-hybrid"))
    assert llama_cpp.__version__ in str(caught.value)
    assert module.library_version() in str(caught.value)
    assert "n_ubatch 512 instead of 513" in str(caught.value)


def test_offload_without_a_gpu_backend_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"SEMIF_N_GPU_LAYERS=-1, but no GPU backend is loaded \(devices: CPU\)"):
        Model(model_path("tiny-hybrid"), gpu_layers=-1)


@pytest.mark.parametrize(
    ("asked", "line", "complaint"),
    [
        (-1, "load_tensors: offloaded 33/33 layers to GPU", None),
        (-1, "load_tensors: offloaded 20/33 layers to GPU", "only 20 of 33"),
        (8, "load_tensors: offloaded 8/33 layers to GPU", None),
        (8, "load_tensors: offloaded 7/33 layers to GPU", "only 7 of 33"),
        (99, "load_tensors: offloaded 33/33 layers to GPU", None),
        (-1, "something else", "only 0 of 0"),
        (0, "something else", None),
    ],
)
def test_fewer_layers_on_the_gpu_than_asked_for_are_refused(asked: int, line: str, complaint: str | None) -> None:
    if complaint is None:
        assert module._offloaded_layers(asked, [line]) == (asked if 0 <= asked <= 33 else 33)
    else:
        with pytest.raises(ModelLoadError, match=complaint):
            module._offloaded_layers(asked, [line])


def test_a_broken_file_is_refused_with_llama_cpps_reason(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelLoadError, match=r"cannot load .*model\.gguf: ."):
        Model(path)
