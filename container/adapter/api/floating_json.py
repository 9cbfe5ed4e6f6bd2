"""JSON in which a float can always be told from an integer: strict clients read `1` as the wrong type."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class FloatingJSONResponse(JSONResponse):
    """A JSON response whose floats all carry a decimal point, also `1.0` and `1.0e-07`."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return dumps(content).encode("utf-8")


def dumps(value: Any) -> str:
    """Compact JSON of `value`; raises `ValueError` for a float that is not finite."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_scalar(key)}:{dumps(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dumps, value)) + "]"
    text = _scalar(value)
    if isinstance(value, float) and "." not in text:
        mantissa, _, exponent = text.partition("e")  # Python writes 1e-07
        return f"{mantissa}.0e{exponent}"
    return text


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
