"""The image's Dockerfile, as far as it can be read without building it."""

from __future__ import annotations

from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "container" / "Dockerfile"
BASE_LIBRARIES = "/opt/llama.cpp/bin"  # of the AWS Deep Learning Container for llama.cpp


def test_library_and_backends_come_from_the_base() -> None:
    final = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    environment = final.partition("\nENV ")[2].partition("\nLABEL")[0].replace("\\\n", " ").split()
    assert f"LLAMA_CPP_LIB_PATH={BASE_LIBRARIES}" in environment
    # Its backends are plugins (GGML_BACKEND_DL): without them there is none, not even for the CPU.
    assert f"SEMIF_LLAMA_CPP_LIB_DIR={BASE_LIBRARIES}" in environment
