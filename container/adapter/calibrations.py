"""The calibrations that an endpoint holds: by name, the temperatures that were fitted on labelled decisions."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from adapter.prompt import VERSIONS

QuestionType = Literal["noul", "choice", "score"]

FILE_NAME = "calibrations.json"
LIMIT_BYTES = 64 * 1024
LOWEST, HIGHEST = 0.01, 100.0
QUESTION_TYPES: tuple[QuestionType, ...] = ("noul", "choice", "score")

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_ENTRY_KEYS = ("temperature", "temperatures", "fitted_for", "evidence")


class CalibrationError(ValueError):
    """The calibration file is wrong, or a decision names one that does not fit it; the message is one line."""


@dataclass(frozen=True)
class FittedFor:
    """What a calibration was fitted on: other logits, of another model or prompt, would need other temperatures."""

    gguf_sha256: str
    prompt_version: str


@dataclass(frozen=True)
class AppliedCalibration:
    """What one decision's logits are divided by before the softmax: above 1 it makes answers less sure."""

    name: str
    temperature: float
    question_type: QuestionType | None = None  # None: of a plain decision, which has no type

    @property
    def status(self) -> str:
        """The wire's `probability_status`."""
        of_type = "" if self.question_type is None else f" for {self.question_type}"
        return f"calibrated by {self.name!r}{of_type}: softmax at temperature {self.temperature}"


@dataclass(frozen=True)
class Calibration:
    """One entry of the file: a temperature, and others for those types of questions that need their own."""

    name: str
    temperature: float
    temperatures: Mapping[QuestionType, float] = field(default_factory=dict)
    fitted_for: FittedFor | None = None

    def applied(self, question_type: QuestionType | None) -> AppliedCalibration:
        """What it means for a question of that type, or for a plain decision (None)."""
        own = None if question_type is None else self.temperatures.get(question_type)
        return AppliedCalibration(self.name, self.temperature if own is None else own, question_type)


class Calibrations:
    """What lies beside the model in `calibrations.json`.

    `{"NAME": {"temperature": 1.4, "temperatures": {"noul": 1.2}, "fitted_for": {...}, "evidence": {...}}, ...}`, where
    only the first must be. `fitted_for` is checked against what is served; `evidence`, on which the fit rests, is for
    people.
    """

    def __init__(
        self, directory: Path, *, for_questions: str | None = None, packaged_sha256: str | None = None
    ) -> None:
        """Read the file where there is one.

        `for_questions` names the calibration of System One and OpenAI Decisions, whose requests cannot name one;
        `packaged_sha256` is what the model's manifest says of the file, where it names one. Raises `CalibrationError`
        where the file is wrong, is not the packaged one or does not hold the one that is named.
        """
        self._path = directory / FILE_NAME
        content = self._path.read_bytes() if self._path.exists() else None
        if packaged_sha256 is not None:
            _check_packaged(self._path, content, packaged_sha256)
        self._by_name = {} if content is None else _read(self._path, content)
        self.for_questions: Calibration | None = None
        if for_questions is not None:
            try:
                self.for_questions = self.named(for_questions)
                _check_prompt(self.for_questions, VERSIONS["state-first"])  # their only layout
            except CalibrationError as error:
                raise CalibrationError(f"SEMIF_CALIBRATION={for_questions!r}: {error}") from error

    def named(self, name: str) -> Calibration:
        """Raises `CalibrationError`, which lists those that are there, where there is none of that name."""
        if name not in self._by_name:
            known = ", ".join(map(repr, sorted(self._by_name))) or "none"
            raise CalibrationError(f"there is no calibration {name!r}; this endpoint holds: {known}")
        return self._by_name[name]

    def for_decision(
        self, name: str | None, question_type: QuestionType | None, prompt_version: str
    ) -> AppliedCalibration | None:
        """What a decision is read with: the calibration that it names, or for a typed question the endpoint's own.

        None: the model's own probabilities. Raises `CalibrationError` where it names one that is not there or that was
        fitted for another prompt.
        """
        if name is None:
            own = self.for_questions
            return None if question_type is None or own is None else own.applied(question_type)
        calibration = self.named(name)
        _check_prompt(calibration, prompt_version)
        return calibration.applied(question_type)

    def check_model(self, gguf: str, sha256: str) -> None:
        """Raises `CalibrationError` where one was fitted for another model than the GGUF of that name and SHA-256."""
        for calibration in self._by_name.values():
            fitted_for = calibration.fitted_for
            if fitted_for is not None and fitted_for.gguf_sha256 != sha256:
                raise CalibrationError(
                    f"{self._path}: {calibration.name!r} was fitted for the model with sha256 "
                    f"{fitted_for.gguf_sha256}; this one is {gguf} with sha256 {sha256}"
                )


def _check_prompt(calibration: Calibration, prompt_version: str) -> None:
    fitted_for = calibration.fitted_for
    if fitted_for is not None and fitted_for.prompt_version != prompt_version:
        raise CalibrationError(
            f"calibration {calibration.name!r} was fitted for the prompt {fitted_for.prompt_version!r}, "
            f"and this is {prompt_version!r}"
        )


def _check_packaged(path: Path, content: bytes | None, sha256: str) -> None:
    if content is None:
        raise CalibrationError(f"there is no {path}, which the model's manifest names")
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise CalibrationError(
            f"checksum of {path} differs from the model's manifest: expected sha256 {sha256}, found {found}"
        )


def _read(path: Path, content: bytes) -> dict[str, Calibration]:
    if len(content) > LIMIT_BYTES:
        raise CalibrationError(f"{path} has {len(content)} bytes; at most {LIMIT_BYTES} are allowed")
    try:
        entries = json.loads(content, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CalibrationError(f"{path} must hold an object: a name and its temperature for each calibration")
    try:
        return {name: _calibration(name, entry) for name, entry in entries.items()}
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise CalibrationError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _refuse_constant(constant: str) -> None:
    raise CalibrationError(f"{constant} is no JSON number")


def _calibration(name: str, entry: Any) -> Calibration:
    if not re.fullmatch(_NAME, name):
        raise CalibrationError(
            f"the name {name!r} must be 1 to 64 letters, digits, '.', '_', '-', a letter or digit first"
        )
    if not isinstance(entry, dict):
        raise CalibrationError(f"{name!r} must be an object with its 'temperature', not {entry!r}")
    _check_keys(repr(name), entry, _ENTRY_KEYS)
    typed = entry.get("temperatures", {})
    if not isinstance(typed, dict):
        raise CalibrationError(f"the temperatures of {name!r} must be an object, not {typed!r}")
    _check_keys(f"the temperatures of {name!r}", typed, QUESTION_TYPES)
    if not isinstance(entry.get("evidence", {}), dict):
        raise CalibrationError(f"the evidence of {name!r} must be an object, not {entry['evidence']!r}")
    return Calibration(
        name,
        _temperature(repr(name), entry.get("temperature")),
        {kind: _temperature(f"{name!r} for {kind}", typed[kind]) for kind in QUESTION_TYPES if kind in typed},
        _fitted_for(name, entry["fitted_for"]) if "fitted_for" in entry else None,
    )


def _temperature(of: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and LOWEST <= value <= HIGHEST:
        return float(value)
    raise CalibrationError(f"the temperature of {of} must be a number from {LOWEST:g} to {HIGHEST:g}, not {value!r}")


def _fitted_for(name: str, value: Any) -> FittedFor:
    of = f"'fitted_for' of {name!r}"
    if not isinstance(value, dict):
        raise CalibrationError(f"{of} must be an object, not {value!r}")
    _check_keys(of, value, ("gguf_sha256", "prompt_version"))
    sha256, prompt_version = value.get("gguf_sha256"), value.get("prompt_version")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise CalibrationError(f"{of}: gguf_sha256 must be 64 lower-case hexadecimal digits, not {sha256!r}")
    if not isinstance(prompt_version, str) or prompt_version not in VERSIONS.values():
        known = ", ".join(map(repr, VERSIONS.values()))
        raise CalibrationError(f"{of}: prompt_version is {prompt_version!r}; this adapter's prompts are {known}")
    return FittedFor(sha256, prompt_version)


def _check_keys(of: str, found: dict[str, Any], allowed: Collection[str]) -> None:
    for key in found:
        if key not in allowed:
            raise CalibrationError(f"{of} has the unknown key {key!r}; allowed: {', '.join(allowed)}")
