"""Starts that must fail: status 1, and one line on standard error that says what is wrong and what to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.container.conftest import ADAPTER, EMBEDDED, adapter_environment, free_port
from tests.models.make_models import model_path


def start(model_dir: Path, **settings: str) -> tuple[int, list[str]]:
    """Exit status and lines on standard error of a start that must fail."""
    done = subprocess.run(
        ADAPTER,
        env=adapter_environment(model_dir, free_port(), settings),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"SEMIF_THREADS": "0"}, "adapter: bad setting: SEMIF_THREADS='0'"),
        ({"SEMIF_GGUF_PATH": "/nowhere/a.gguf"}, "adapter: no model: /nowhere/a.gguf is not a file"),
    ],
)
def test_a_bad_setting_stops_the_start_with_one_line(
    embedded_dir: Path, settings: dict[str, str], message: str
) -> None:
    status, lines = start(embedded_dir, **settings)
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith(message)


def _no_file(place: Path) -> None:
    (place / "readme.txt").write_text("nothing")


def _two_files(place: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (place / name).symlink_to(model_path("tiny-hybrid"))


def _truncated(place: Path) -> None:
    (place / "m.gguf").write_bytes(EMBEDDED.read_bytes()[:2_000_000])


def _other_magic(place: Path) -> None:
    (place / "m.gguf").write_bytes(b"PK\x03\x04" + bytes(100))


def _wrong_header(place: Path) -> None:
    content = bytearray(model_path("tiny-hybrid").read_bytes())
    content[16:24] = b"\xff" * 8  # how many metadata entries there are
    (place / "m.gguf").write_bytes(content)


def _weights_that_are_not_numbers(place: Path) -> None:
    content = bytearray(model_path("tiny-hybrid").read_bytes())
    half = len(content) // 2
    content[half:] = b"\xff" * (len(content) - half)
    (place / "m.gguf").write_bytes(content)


def _no_template(place: Path) -> None:
    content = model_path("tiny-hybrid").read_bytes()
    assert content.count(b"tokenizer.chat_template") == 1
    (place / "m.gguf").write_bytes(content.replace(b"tokenizer.chat_template", b"tokenizer.chat_templatx"))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_no_file, "adapter: no model: no *.gguf in {place} (SEMIF_MODEL_DIR) or one level below"),
        (_two_files, "adapter: 2 models in {place}: a.gguf, b.gguf; name one with SEMIF_GGUF_PATH"),
        (_truncated, "adapter: llama.cpp cannot load {place}/m.gguf: "),
        (_other_magic, "adapter: {place}/m.gguf is not a GGUF: it does not begin with the letters GGUF"),
        (_wrong_header, "adapter: llama.cpp cannot load {place}/m.gguf: "),
        (_weights_that_are_not_numbers, "adapter: the model's logits are not finite"),
        (_no_template, "adapter: {place}/m.gguf holds no chat template (tokenizer.chat_template)"),
    ],
)
def test_a_model_that_cannot_be_served_stops_the_start_with_one_line(
    tmp_path: Path, prepare: Callable[[Path], None], message: str
) -> None:
    prepare(tmp_path)
    status, lines = start(tmp_path)
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith(message.format(place=tmp_path))


def test_a_model_that_is_not_the_packaged_one_stops_the_start(tmp_path: Path) -> None:
    copy = tmp_path / EMBEDDED.name
    shutil.copyfile(EMBEDDED, copy)
    with copy.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    manifest = {
        "name": "m",
        "file": copy.name,
        "bytes": copy.stat().st_size,
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    }
    (tmp_path / "model-manifest.json").write_text(json.dumps(manifest))
    status, lines = start(tmp_path)
    assert (status, len(lines)) == (1, 1)
    assert "differs from its manifest: expected sha256 b179c952" in lines[0]


def test_another_command_is_refused_with_the_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "adapter", "train"],
        env=adapter_environment(Path(), 1, {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "usage: python -m adapter serve\n")
