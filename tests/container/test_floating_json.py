"""JSON whose floats all carry a decimal point."""

from __future__ import annotations

import json

import pytest

from adapter.api.floating_json import dumps


def test_floats_carry_a_decimal_point_and_integers_do_not() -> None:
    value = {"a": [0.0, 1.0, 1e-07, 5e-324, 1e22, 0.1], "n": 0, "t": True, "s": "1e-07 ü\n", "z": None, "e": {}}
    text = dumps(value)
    assert text == ('{"a":[0.0,1.0,1.0e-07,5.0e-324,1.0e+22,0.1],"n":0,"t":true,"s":"1e-07 ü\\n","z":null,"e":{}}')
    assert json.loads(text) == value


def test_what_is_not_a_number_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps([float("nan")])
