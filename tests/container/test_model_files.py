"""The GGUF that is served is found without guessing, and proved to be the packaged one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from adapter.model_files import ModelFileError, find_model

CONTENT = b"GGUF and the rest of a model"


def _write(place: Path, name: str = "a.gguf", content: bytes = CONTENT) -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _manifest(place: Path, **changes: object) -> Path:
    manifest = {
        "manifest_version": 1,
        "name": "A",
        "file": "a.gguf",
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        **changes,
    }
    return _write(place, "model-manifest.json", json.dumps(manifest).encode())


def test_the_only_gguf_is_served_under_its_own_name(tmp_path: Path) -> None:
    path = _write(tmp_path, "folder/tiny.Q4_0.gguf")
    file = find_model(tmp_path, None, {})
    assert (file.path, file.name, file.size, file.manifest) == (path, "tiny.Q4_0", len(CONTENT), None)
    assert file.verify() == hashlib.sha256(CONTENT).hexdigest()


def test_the_manifest_chooses_among_several(tmp_path: Path) -> None:
    _write(tmp_path)
    _write(tmp_path, "b.gguf")
    _manifest(tmp_path)
    file = find_model(tmp_path, None, {})
    assert (file.path.name, file.name) == ("a.gguf", "A")


def test_the_path_setting_wins_over_the_directory(tmp_path: Path) -> None:
    _write(tmp_path)
    other = _write(tmp_path, "b.gguf")
    _manifest(tmp_path)
    file = find_model(tmp_path, other, {})
    assert (file.path, file.manifest) == (other, None)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda _: None, r"no model: no \*\.gguf in"),
        (lambda place: (_write(place), _write(place, "b.gguf")), r"2 models in .*a\.gguf, b\.gguf.*SEMIF_GGUF_PATH"),
        (lambda place: _write(place, content=b"PK\x03\x04"), "is not a GGUF"),
        (lambda place: (_write(place), _manifest(place, bytes=5)), "expected 5 bytes, found 28"),
        (_manifest, "is not a file"),
        (lambda place: (_write(place), _manifest(place, sha256=5)), "'sha256' is missing or not of type str"),
        (lambda place: (_write(place), _manifest(place, file="../a.gguf")), "must be a plain file name"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, prepare: object, message: str) -> None:
    assert callable(prepare)
    prepare(tmp_path)
    with pytest.raises(ModelFileError, match=message):
        find_model(tmp_path, None, {})


def test_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / "model-manifest.json").write_text("{")
    with pytest.raises(ModelFileError, match="is not JSON"):
        find_model(tmp_path, None, {})


def test_another_checksum_is_refused_with_both(tmp_path: Path) -> None:
    _write(tmp_path)
    _manifest(tmp_path, sha256="0" * 64)
    with pytest.raises(
        ModelFileError, match=f"expected sha256 {'0' * 64}, found {hashlib.sha256(CONTENT).hexdigest()}"
    ):
        find_model(tmp_path, None, {}).verify()


def test_a_claimed_tokenizer_must_be_the_packaged_one(tmp_path: Path) -> None:
    _write(tmp_path)
    _manifest(tmp_path, tokenizer={"repo": "Qwen/Qwen3.5-4B", "revision": "abc"})
    find_model(tmp_path, None, {"revision": "abc", "local_files_only": "1"})
    with pytest.raises(ModelFileError, match="SEMIF_TOKENIZER_REVISION='def' contradicts"):
        find_model(tmp_path, None, {"revision": "def"})
