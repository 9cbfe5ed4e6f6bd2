"""Words with which the requests describe themselves: what is checked by hand still has its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

NonEmpty = Annotated[str, Field(min_length=1)]
ModelName = Annotated[str, Field(description="of the model that is loaded, or of one of the hosted APIs' models")]

ANY_OBJECT: dict[str, Any] = {"type": "object"}
ANY_TEXT: dict[str, Any] = {"type": ["string", "object", "array"]}  # what can be shown to a model
