"""What the answer to a decision says: the wire's `R`, as the service makes it and the OpenAPI document describes it."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, with_config
from typing_extensions import NotRequired, TypedDict

# For the shape of an answer: it has the declared fields and no others.
closed = with_config(ConfigDict(extra="forbid"))

Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


@closed
class ModelInfo(TypedDict):
    """What answered: the file, the library, the device, and whether answers depend on what was cached."""

    name: str
    gguf_file: str
    gguf_bytes: Count
    gguf_sha256: str
    backend: str
    device: str
    gpu_layers: int
    backends: list[str]
    threads: Count
    context_tokens: Count
    library_version: str
    exactness: dict[str, bool | int | float | None]


@closed
class Permutations(TypedDict):
    """In how many orders the options were asked, and by how much each one's probability moved."""

    orders: Count
    spread: list[Probability]


@closed
class Result(TypedDict):
    """The answer to one decision; lists are in the order of the options."""

    id: str
    option_ids: list[str]
    probabilities: list[Probability]
    option_logits: list[float]
    answer_token_ids: list[Count]
    input_tokens: Count
    cached_tokens: Count
    allowed_token_mass: Probability
    full_vocab_argmax_id: Count
    prompt_sha256: str
    prompt_version: str
    model: ModelInfo
    readout: str
    probability_status: str
    forward_seconds: Seconds
    total_seconds: Seconds
    permutations: NotRequired[Permutations]


@closed
class Timing(TypedDict):
    """Where the time of a request went."""

    batch_size: Count
    prefix_tokens: Count
    prefill_seconds: Seconds
    suffix_forward_seconds: Seconds
    total_seconds: Seconds
