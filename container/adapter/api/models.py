"""By which names the one model answers, and `GET /v1/models`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Literal

from typing_extensions import TypedDict

from adapter.api.errors import UNKNOWN_MODEL, ApiError
from adapter.result import Count, closed

# The hosted APIs' own models: a client that changes nothing but its base URL asks for one of them.
ALIASES = ("jev-latest", "gpt-6-luna")
FAMILIES = ("jev-", "gpt-")


@closed
class TypeSafeModel(TypedDict):
    """A model as TypeSafe lists it."""

    name: str
    description: str
    release_date: str


@closed
class OpenAIModel(TypedDict):
    """A model as OpenAI lists it; `created` is in seconds since 1970."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str


@closed
class ModelList(TypedDict):
    """The model and the names it answers to, in both shapes."""

    models: list[TypeSafeModel]
    object: Literal["list"]
    data: list[OpenAIModel]


def check_model(asked: str, name: str) -> None:
    """Raises `ApiError` unless `asked` is the model's `name` or one of the hosted APIs' models."""
    if asked != name and not asked.startswith(FAMILIES):
        raise ApiError(
            400,
            f"model {asked!r} is not served here; send {name!r}, 'jev-latest' or another jev-* or gpt-* name",
            code=UNKNOWN_MODEL,
        )


def model_list(name: str, since: datetime, calibration: str | None) -> ModelList:
    """The models in TypeSafe's shape and in OpenAI's at once; `since` is when this endpoint began to serve.

    `calibration`: the one that typed questions are answered with.
    """
    day = since.astimezone(timezone.utc).date().isoformat()
    served = f"{name}, served since {day} by llama.cpp"
    if calibration is not None:
        served += f", calibrated by {calibration!r}"
    descriptions = {name: served, **dict.fromkeys(ALIASES, f"alias of {served}")}
    return {
        "models": [
            {"name": each, "description": description, "release_date": day}
            for each, description in descriptions.items()
        ],
        "object": "list",
        "data": [
            {"id": each, "object": "model", "created": int(since.timestamp()), "owned_by": "decision-endpoints"}
            for each in descriptions
        ],
    }
