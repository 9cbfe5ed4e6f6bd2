"""Runs inside CodeBuild: fetches the pinned model, checks it, and puts it into the bucket under its content's id.

Prints the prefix to standard output, everything else to standard error. Run twice, it does nothing the second time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from stacks.model_build.sources import SourceError, check_file, fetch, fetch_tokenizer, sha256_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MANIFEST = "model-manifest.json"
ARCHIVE = "model.tar.gz"
CALIBRATIONS = "calibrations.json"
_CORPUS = Path(__file__).with_name("corpus.json")


class PackagingError(Exception):
    """The model cannot be packaged; the message is one line for the reader of the deploy."""


def description_from(variables: Mapping[str, str]) -> dict[str, Any]:
    """What the CodeBuild project's variables ask for: all that decides where the artifact lies.

    Raises PackagingError where a variable is missing, or the calibration file that one names is.
    """
    calibrations = _calibrations_path(variables)
    tokenizer = json.loads(_variable(variables, "MODEL_TOKENIZER"))
    return {
        "manifest_version": 1,
        "name": _variable(variables, "MODEL_NAME"),
        "file": _variable(variables, "MODEL_FILE"),
        "bytes": int(_variable(variables, "MODEL_BYTES")),
        "sha256": _variable(variables, "MODEL_SHA256"),
        "source": json.loads(_variable(variables, "MODEL_SOURCE")),
        # Other texts to compare over are another proof, so another artifact.
        "tokenizer": tokenizer and {**tokenizer, "corpus_sha256": sha256_of(_CORPUS)},
        "archive": json.loads(_variable(variables, "MODEL_ARCHIVE")),
        # Without a file nothing is said: the artifacts that were made before there were any keep their place.
        **({} if calibrations is None else {"calibrations": _calibrations_entry(calibrations)}),
    }


def _calibrations_path(variables: Mapping[str, str]) -> Path | None:
    name = variables.get("MODEL_CALIBRATIONS")
    return None if name is None else Path(name)


def _calibrations_entry(path: Path) -> dict[str, str]:
    try:
        return {"file": CALIBRATIONS, "sha256": sha256_of(path)}
    except OSError as error:
        raise PackagingError(f"{path} (MODEL_CALIBRATIONS) cannot be read: {error.strerror}") from error


def _variable(variables: Mapping[str, str], name: str) -> str:
    if name not in variables:
        raise PackagingError(f"the environment variable {name} is not set")
    return variables[name]


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as it is stored: equal manifests are equal bytes."""
    return (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()


def prefix_of(description: Mapping[str, Any]) -> str:
    """Where the artifact lies: another model, source, tokenizer or form means another place."""
    return f"models/{hashlib.sha256(manifest_text(description)).hexdigest()[:32]}/"


def is_packaged(s3: S3Client, bucket: str, prefix: str) -> bool:
    """Whether the artifact is complete: its manifest is written last."""
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix + MANIFEST)
    return any(entry["Key"] == prefix + MANIFEST for entry in listed.get("Contents", []))


def package(description: Mapping[str, Any], calibrations: Path | None, s3: S3Client, bucket: str) -> str:
    """Put the model, its calibrations and then its manifest into the bucket, unless they are there; their prefix.

    Raises SourceError, ParityError or PackagingError before anything is uploaded, where the fetched file is not the one
    that is pinned or does not tokenize as its reference.
    """
    prefix = prefix_of(description)
    if is_packaged(s3, bucket, prefix):
        _say(f"{prefix} is there already")
        return prefix
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / description["file"]
        _say(f"fetching {description['file']} ({description['bytes']} bytes) from {description['source']['kind']}")
        fetch(description["source"], path, limit_bytes=description["bytes"])
        check_file(path, expected_bytes=description["bytes"], expected_sha256=description["sha256"])
        manifest = manifest_text({**description, "tokenizer": _tokenizer_entry(description["tokenizer"], path)})
        if description["archive"]:
            _say(f"packing {ARCHIVE}")
            path = _archive(path, calibrations, manifest)
        _say(f"uploading {path.name} to {prefix}")
        s3.upload_file(str(path), bucket, prefix + path.name)
    if calibrations is not None and not description["archive"]:
        s3.upload_file(str(calibrations), bucket, prefix + CALIBRATIONS)
    s3.put_object(Bucket=bucket, Key=prefix + MANIFEST, Body=manifest, ContentType="application/json")
    return prefix


def _tokenizer_entry(tokenizer: Mapping[str, str] | None, gguf: Path) -> dict[str, Any]:
    """What the manifest says of the tokenizer: which reference it was compared with, and over what."""
    if tokenizer is None:
        return {"parity": "not checked: this model has no reference tokenizer configured"}
    # Compiled and installed only where there is something to compare with.
    from stacks.model_build.parity import ParityError, compare  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        reference = Path(directory) / "tokenizer.json"
        _say(f"comparing the vocabulary with the tokenizer of {tokenizer['repo']}")
        fetch_tokenizer(tokenizer, reference)
        try:
            parity = compare(gguf, reference)
        except ParityError as error:
            raise PackagingError(str(error)) from error
        return {**tokenizer, "sha256": sha256_of(reference), "parity": parity}


def _archive(path: Path, calibrations: Path | None, manifest: bytes) -> Path:
    """The file, its calibrations and its manifest in one archive beside it; equal contents are equal bytes."""
    target = path.with_name(ARCHIVE)
    # Hardly compressed: a GGUF has next to no redundancy, and SageMaker has to unpack it at every start.
    with target.open("wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
        with path.open("rb") as model:
            archive.addfile(_member(path.name, path.stat().st_size), model)
        if calibrations is not None:
            content = calibrations.read_bytes()
            archive.addfile(_member(CALIBRATIONS, len(content)), io.BytesIO(content))
        archive.addfile(_member(MANIFEST, len(manifest)), io.BytesIO(manifest))
    return target


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    return member


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Package what the environment variables describe; 1 and one line where that fails."""
    try:
        description = description_from(os.environ)
        bucket = _variable(os.environ, "MODEL_BUCKET")
        prefix = package(description, _calibrations_path(os.environ), boto3.client("s3"), bucket)
    except (PackagingError, SourceError, BotoCoreError, ClientError) as error:
        _say(f"error: {error}")
        return 1
    print(prefix)
    return 0


if __name__ == "__main__":
    sys.exit(main())
