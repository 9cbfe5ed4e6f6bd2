"""Writes `calibrations.json`: one more name, the others as they were, whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.errors import UsageError
from stacks.calibrations import LIMIT_BYTES, check_calibration_name, check_calibrations
from stacks.checks import ConfigError


def check_target(path: Path, name: str, *, replace: bool) -> Mapping[str, Any]:
    """What the file holds already, {} where there is none yet.

    Raises UsageError where no calibration can have that name, where the file is wrong or holds the name already and
    `replace` is false, or where its folder is missing: before an hour of questions, not after it.
    """
    try:
        check_calibration_name(name, "--name")
        held = check_calibrations(path, "--output", sha256=None) if path.exists() else {}
    except ConfigError as error:
        raise UsageError(str(error)) from error
    if not path.parent.is_dir():
        raise UsageError(f"--output: there is no folder {path.parent}")
    if name in held and not replace:
        raise UsageError(f"{path} holds a calibration {name!r} already: choose another --name, or add --replace")
    return held


def add(path: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Write the file anew with the entry under that name; the file's other entries stay, in their order.

    It is read again first, so that what was added meanwhile is not lost. Raises UsageError where it cannot be written.
    """
    held = check_target(path, name, replace=True)
    text = json.dumps({**held, name: entry}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if len(text.encode()) > LIMIT_BYTES:
        raise UsageError(
            f"{path} would have {len(text.encode())} bytes with {name!r}; at most {LIMIT_BYTES} are allowed"
        )
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                # A temporary file is its owner's alone; this one is for the repository.
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777 if path.exists() else 0o644)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
