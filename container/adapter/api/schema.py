"""Words with which the requests describe themselves: what is checked by hand still has its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

NonEmpty = Annotated[str, Field(min_length=1)]

# Under this name the OpenAPI document says by which names the model that is loaded answers.
MODEL_NAME_REF = "#/components/schemas/ModelName"
ModelName = Annotated[str, WithJsonSchema({"$ref": MODEL_NAME_REF})]

ANY_OBJECT: dict[str, Any] = {"type": "object"}
ANY_TEXT: dict[str, Any] = {"type": ["string", "object", "array"]}  # what can be shown to a model
