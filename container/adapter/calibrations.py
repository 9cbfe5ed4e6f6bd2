"""The calibrations that an endpoint holds: by name, the temperature that was fitted on labelled decisions."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "calibrations.json"


class CalibrationError(ValueError):
    """The calibration file is wrong, or a decision names a calibration that is not there; the message is one line."""


@dataclass(frozen=True)
class Calibration:
    """Logits are divided by `temperature` before the softmax: above 1 it makes answers less sure."""

    name: str
    temperature: float


class Calibrations:
    """What lies beside the model in `calibrations.json`: `{"NAME": {"temperature": 1.4}, ...}`."""

    def __init__(self, directory: Path) -> None:
        """Read the file where there is one. Raises `CalibrationError` where it is wrong."""
        path = directory / FILE_NAME
        self._by_name = _read(path) if path.exists() else {}

    def named(self, name: str) -> Calibration:
        """Raises `CalibrationError`, which lists those that are there, where there is none of that name."""
        if name not in self._by_name:
            known = ", ".join(map(repr, sorted(self._by_name))) or "none"
            raise CalibrationError(f"there is no calibration {name!r}; this endpoint holds: {known}")
        return self._by_name[name]


def _read(path: Path) -> dict[str, Calibration]:
    try:
        entries = json.loads(path.read_bytes())
    except ValueError as error:
        raise CalibrationError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CalibrationError(f"{path} must hold an object: a name and its temperature for each calibration")
    return {name: Calibration(name, _temperature(path, name, entry)) for name, entry in entries.items()}


def _temperature(path: Path, name: str, entry: object) -> float:
    value = entry.get("temperature") if isinstance(entry, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    raise CalibrationError(f"{path}: the temperature of {name!r} must be a number above 0, not {value!r}")
