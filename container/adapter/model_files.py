"""Which GGUF is served, and the proof that it is the one that was packaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST_NAME = "model-manifest.json"
GGUF_MAGIC = b"GGUF"


class ModelFileError(ValueError):
    """The model's files are missing, ambiguous or not the packaged ones; the message is one line."""


@dataclass(frozen=True)
class ModelFile:
    """A GGUF on disk and what its manifest, where there is one, says of it."""

    path: Path
    size: int  # bytes
    name: str
    manifest: Mapping[str, Any] | None

    @property
    def calibrations_sha256(self) -> str | None:
        """SHA-256 of the calibration file that was packaged with it; None where none was."""
        packaged = None if self.manifest is None else self.manifest.get("calibrations")
        return str(packaged["sha256"]) if isinstance(packaged, dict) and "sha256" in packaged else None

    def verify(self) -> str:
        """Read the whole file and return its SHA-256 in hex.

        Raises `ModelFileError` where the manifest holds another one.
        """
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
        found = digest.hexdigest()
        if self.manifest is not None and self.manifest["sha256"] != found:
            raise ModelFileError(
                f"checksum of {self.path} differs from its manifest: "
                f"expected sha256 {self.manifest['sha256']}, found {found}"
            )
        return found


def find_model(model_dir: Path, gguf_path: Path | None, tokenizer_claims: Mapping[str, str]) -> ModelFile:
    """Find the GGUF to serve: `gguf_path` if given, else the manifest's file, else the only GGUF in `model_dir`.

    Raises `ModelFileError` where there is none or more than one, where the file is not a GGUF, or where the manifest
    contradicts the file's size or the tokenizer that the environment claims.
    """
    directory = gguf_path.parent if gguf_path else model_dir
    manifest = _read_manifest(directory / MANIFEST_NAME)
    if gguf_path is not None:
        path = gguf_path
        if manifest is not None and manifest["file"] != path.name:
            manifest = None  # the manifest beside it speaks of another file
    elif manifest is not None:
        path = directory / manifest["file"]
    else:
        path = _only_gguf(model_dir)
    if not path.is_file():
        raise ModelFileError(f"no model: {path} is not a file")
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise ModelFileError(f"{path} is not a GGUF: it does not begin with the letters GGUF")
    if manifest is not None:
        if manifest["bytes"] != size:
            raise ModelFileError(
                f"size of {path} differs from its manifest: expected {manifest['bytes']} bytes, found {size}"
            )
        _check_tokenizer(manifest, tokenizer_claims)
    return ModelFile(path=path, size=size, name=manifest["name"] if manifest else path.stem, manifest=manifest)


def _only_gguf(model_dir: Path) -> Path:
    found = sorted(model_dir.glob("*.gguf")) + sorted(model_dir.glob("*/*.gguf"))
    if not found:
        raise ModelFileError(f"no model: no *.gguf in {model_dir} (SEMIF_MODEL_DIR) or one level below")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ModelFileError(f"{len(found)} models in {model_dir}: {names}; name one with SEMIF_GGUF_PATH")
    return found[0]


def _read_manifest(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelFileError(f"{path} is not JSON: {error}") from error
    for key, kind in (("name", str), ("file", str), ("bytes", int), ("sha256", str)):
        if not isinstance(manifest, dict) or not isinstance(manifest.get(key), kind):
            raise ModelFileError(f"{path}: {key!r} is missing or not of type {kind.__name__}")
    if Path(manifest["file"]).name != manifest["file"]:
        raise ModelFileError(f"{path}: 'file' must be a plain file name, not {manifest['file']!r}")
    return dict(manifest)


def _check_tokenizer(manifest: Mapping[str, Any], claims: Mapping[str, str]) -> None:
    packaged = manifest.get("tokenizer")
    if not isinstance(packaged, dict):
        return
    for key, claimed in claims.items():
        if key in packaged and packaged[key] != claimed:
            raise ModelFileError(
                f"SEMIF_TOKENIZER_{key.upper()}={claimed!r} contradicts the model's manifest, "
                f"which has {packaged[key]!r}"
            )
