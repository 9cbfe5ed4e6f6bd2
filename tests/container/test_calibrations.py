"""The calibration file is read whole and checked whole, before the endpoint is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.calibrations import Calibration, CalibrationError, Calibrations


def test_calibrations_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "calibrations.json").write_text('{"b": {"temperature": 0.5}, "a": {"temperature": 2}}')
    held = Calibrations(tmp_path)
    assert held.named("a") == Calibration("a", 2.0)
    with pytest.raises(CalibrationError, match=r"no calibration 'c'; this endpoint holds: 'a', 'b'"):
        held.named("c")


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="holds: none"):
        Calibrations(tmp_path).named("a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold an object"),
        ('{"a": 2}', "temperature of 'a' must be a number above 0, not None"),
        ('{"a": {"temperature": 0}}', "above 0, not 0"),
        ('{"a": {"temperature": true}}', "not True"),
        ('{"a": {"temperature": Infinity}}', "not inf"),
    ],
)
def test_a_wrong_file_stops_the_start(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "calibrations.json").write_text(text)
    with pytest.raises(CalibrationError, match=message):
        Calibrations(tmp_path)
