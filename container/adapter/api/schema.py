"""Words with which the requests describe themselves: what is checked by hand still has its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def _integral(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_integral)]  # JSON has one kind of number: 3.0 is an integer, too
NonEmpty = Annotated[str, Field(min_length=1)]
ModelName = Annotated[str, Field(description="of the model that is loaded, or of one of the hosted APIs' models")]

ANY_OBJECT: dict[str, Any] = {"type": "object"}
ANY_TEXT: dict[str, Any] = {"type": ["string", "object", "array"]}  # what can be shown to a model
