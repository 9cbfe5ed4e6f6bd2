"""The calibration file that an environment names: the adapter's own checks, made before anything is deployed."""

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stacks.checks import ConfigError

LIMIT_BYTES = 64 * 1024
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 100.0
QUESTION_TYPES = ("noul", "choice", "score")
PROMPT_VERSIONS = ("direct-options-v1", "criteria-first-v1")

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_ENTRY_KEYS = ("temperature", "temperatures", "fitted_for", "evidence")


class _FaultError(ValueError):
    """What is wrong in the file."""


def check_calibrations(path: Path, where: str, *, sha256: str | None) -> Mapping[str, Any]:
    """The file's entries by name; `sha256` is that of the GGUF beside which it will lie, None where that is open.

    Raises ConfigError, which begins with `where`, unless an adapter with that model takes the file: the checks are
    those of `container/adapter/calibrations.py`, and a test holds the two against each other.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from error
    try:
        entries = _parse(content)
        for name, entry in entries.items():
            _check_entry(name, entry)
            _check_model(name, entry, sha256)
    except _FaultError as fault:
        raise ConfigError(f"{where}: {path}: {fault}") from fault
    return entries


def check_calibration_name(name: str, where: str) -> None:
    """Raise ConfigError unless a calibration may be called so."""
    try:
        _check_name(name)
    except _FaultError as fault:
        raise ConfigError(f"{where}: {fault}") from fault


def _parse(content: bytes) -> dict[str, Any]:
    if len(content) > LIMIT_BYTES:
        raise _FaultError(f"it has {len(content)} bytes; at most {LIMIT_BYTES} are allowed")
    try:
        entries = json.loads(content, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _FaultError:
        raise
    except (ValueError, RecursionError) as error:
        raise _FaultError(f"it is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise _FaultError("it must hold an object: a name and its temperature for each calibration")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise _FaultError(f"the key {name!r} occurs twice")
    return dict(pairs)


def _refuse_constant(constant: str) -> None:
    raise _FaultError(f"{constant} is no JSON number")


def _check_name(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise _FaultError(f"the name {name!r} must be 1 to 64 letters, digits, '.', '_', '-', a letter or digit first")


def _check_entry(name: str, entry: Any) -> None:
    _check_name(name)
    if not isinstance(entry, dict):
        raise _FaultError(f"{name!r} must be an object with its 'temperature', not {entry!r}")
    _check_keys(repr(name), entry, _ENTRY_KEYS)
    _check_temperature(repr(name), entry.get("temperature"))
    typed = _object(f"the temperatures of {name!r}", entry.get("temperatures", {}), QUESTION_TYPES)
    for kind, temperature in typed.items():
        _check_temperature(f"{name!r} for {kind}", temperature)
    _object(f"the evidence of {name!r}", entry.get("evidence", {}), None)
    if "fitted_for" in entry:
        of = f"'fitted_for' of {name!r}"
        fitted_for = _object(of, entry["fitted_for"], ("gguf_sha256", "prompt_version"))
        sha256, prompt_version = fitted_for.get("gguf_sha256"), fitted_for.get("prompt_version")
        if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise _FaultError(f"{of}: gguf_sha256 must be 64 lower-case hexadecimal digits, not {sha256!r}")
        if prompt_version not in PROMPT_VERSIONS:
            known = ", ".join(map(repr, PROMPT_VERSIONS))
            raise _FaultError(f"{of}: prompt_version is {prompt_version!r}; this adapter's prompts are {known}")


def _check_model(name: str, entry: Mapping[str, Any], sha256: str | None) -> None:
    fitted_for = entry.get("fitted_for", {}).get("gguf_sha256")
    if None not in (sha256, fitted_for) and fitted_for != sha256:
        raise _FaultError(f"{name!r} was fitted for the model with sha256 {fitted_for}; this one has sha256 {sha256}")


def _check_temperature(of: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not LOWEST_TEMPERATURE <= value <= HIGHEST_TEMPERATURE:
        bounds = f"{LOWEST_TEMPERATURE:g} to {HIGHEST_TEMPERATURE:g}"
        raise _FaultError(f"the temperature of {of} must be a number from {bounds}, not {value!r}")


def _object(of: str, value: Any, allowed: Collection[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _FaultError(f"{of} must be an object, not {value!r}")
    if allowed is not None:
        _check_keys(of, value, allowed)
    return value


def _check_keys(of: str, found: Mapping[str, Any], allowed: Collection[str]) -> None:
    for key in found:
        if key not in allowed:
            raise _FaultError(f"{of} has the unknown key {key!r}; allowed: {', '.join(allowed)}")
