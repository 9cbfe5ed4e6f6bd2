"""OpenAI's chat completions: its requests as conversations, what is generated as its answers and events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import NotRequired, TypedDict

from adapter.api.errors import DOMAIN_ERRORS, Fault, faults_of, invalid
from adapter.api.schema import Integer, ModelName, NonEmpty
from adapter.chat_service import Reply
from adapter.chats import FinishReason
from adapter.conversation import Message
from adapter.generator import Sampling
from adapter.result import Count, closed

_TEXT, _LIST = "text", "list"  # which of two shapes a value has, as pydantic names it in places


class Only:
    """What OpenAI's API knows and this one does not: only the values with which it asks for nothing, and null."""

    def __init__(self, *values: Any) -> None:
        self._values = {json.dumps(value): value for value in (None, *values)}  # 1, 1.0 and true differ

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        """Called by pydantic."""
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        """Called by pydantic."""
        return {"enum": list(self._values.values())}

    def _check(self, value: Any) -> Any:
        if json.dumps(value) not in self._values:
            others = " or ".join(text for text in self._values if text != "null")
            raise PydanticCustomError(
                "not_supported", "is not supported here{only}", {"only": f"; only {others} is" if others else ""}
            )
        return value


def _shape(value: Any) -> str | None:
    return _TEXT if isinstance(value, str) else _LIST if isinstance(value, list) else None


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TextPart(_Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") != "text":
            raise PydanticCustomError("part_type", "only parts of type 'text' are supported by this model")
        return value


class ChatMessage(_Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag(_TEXT)] | Annotated[list[TextPart], Field(min_length=1), Tag(_LIST)],
        Discriminator(
            _shape,
            custom_error_type="content_type",
            custom_error_message="Input should be a string or a list of text parts",
        ),
    ]
    # What an answer of this API carries beside its content, and clients send back with it.
    refusal: Annotated[Any, Only()] = None
    annotations: Annotated[Any, Only([])] = None
    audio: Annotated[Any, Only()] = None
    function_call: Annotated[Any, Only()] = None
    tool_calls: Annotated[Any, Only([])] = None

    def to_message(self) -> Message:
        """As templates take it: developer is the newer name of system; parts are joined as llama-server joins them."""
        role = "system" if self.role == "developer" else self.role
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return Message(role, content)


class StreamOptions(_Strict):
    """How to stream."""

    include_usage: bool = False
    include_obfuscation: bool | None = None  # accepted and without effect: nothing is padded here


_Penalty = Annotated[float, Field(ge=-2, le=2)]


class ChatRequest(_Strict):
    """A conversation to go on with."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[Integer, Field(ge=1)] | None = None
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None  # its older name
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    seed: Integer | None = None
    stop: (
        Annotated[
            Annotated[NonEmpty, Tag(_TEXT)] | Annotated[list[NonEmpty], Field(max_length=4), Tag(_LIST)],
            Discriminator(
                _shape,
                custom_error_type="stop_type",
                custom_error_message="Input should be a string or a list of strings",
            ),
        ]
        | None
    ) = None
    # Accepted and without effect.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    # Not supported.
    n: Annotated[Any, Only(1)] = None
    tools: Annotated[Any, Only([])] = None
    tool_choice: Annotated[Any, Only("none")] = None
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("none")] = None
    parallel_tool_calls: Annotated[Any, Only()] = None
    response_format: Annotated[Any, Only({"type": "text"})] = None
    logprobs: Annotated[Any, Only(False)] = None
    top_logprobs: Annotated[Any, Only(0)] = None
    logit_bias: Annotated[Any, Only({})] = None
    modalities: Annotated[Any, Only(["text"])] = None
    audio: Annotated[Any, Only()] = None
    prediction: Annotated[Any, Only()] = None
    web_search_options: Annotated[Any, Only()] = None
    reasoning_effort: Annotated[Any, Only("none")] = None
    verbosity: Annotated[Any, Only()] = None
    store: Annotated[Any, Only(False)] = None

    @model_validator(mode="after")
    def _check_together(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError("max_tokens", "max_tokens and max_completion_tokens are one thing; send one")
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options is only for a request with stream: true")
        return self

    def conversation(self) -> list[Message]:
        """Its messages."""
        return [message.to_message() for message in self.messages]

    def sampling(self) -> Sampling:
        """How to draw tokens: what was not said is as OpenAI's service has it."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            seed=self.seed,
        )

    @property
    def stops(self) -> list[str]:
        """Before what to end."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def with_usage(self) -> bool:
        """Whether the last event of a stream says what it cost."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def most_tokens(self) -> int | None:
        """How many tokens to generate at most; None for as many as there is room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


@closed
class PromptTokensDetails(TypedDict):
    """Tokens of the conversation that were known from the one before."""

    cached_tokens: Count


@closed
class ChatUsage(TypedDict):
    """Tokens read and generated; the one that ends a turn is not counted."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails


@closed
class AnswerMessage(TypedDict):
    """What was generated."""

    role: Literal["assistant"]
    content: str
    refusal: None


@closed
class ChatChoice(TypedDict):
    """The only answer."""

    index: Count
    message: AnswerMessage
    logprobs: None
    finish_reason: FinishReason


@closed
class ChatCompletion(TypedDict):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage


@closed
class Delta(TypedDict):
    """What came since the event before."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


@closed
class ChunkChoice(TypedDict):
    """A piece of the only answer."""

    index: Count
    delta: Delta
    logprobs: None
    finish_reason: FinishReason | None


@closed
class ChatCompletionChunk(TypedDict):
    """One event of a streamed answer; `usage` is there where `include_usage` asks for it, and null but at the end."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: list[ChunkChoice]
    usage: NotRequired[ChatUsage | None]


def parse_chat(body: Any) -> ChatRequest:
    """Check a body. Raises `ApiError` 400 with the place of what is wrong."""
    try:
        return ChatRequest.model_validate(body)
    except ValidationError as error:
        raise invalid([_without_shape(fault) for fault in faults_of(error)]) from error


def _without_shape(fault: Fault) -> Fault:
    """pydantic puts a value's shape into the place of what is wrong in it; the caller's body has no such key."""
    steps = zip((None, *fault.where), fault.where, strict=False)
    where = [step for holder, step in steps if holder not in ("content", "stop") or step not in (_TEXT, _LIST)]
    return Fault(tuple(where), fault.message, fault.kind)


def completion(reply: Reply, text: str, model: str) -> ChatCompletion:
    """The whole answer `text` on the wire; `model` is the name of the one that gave it."""
    return {
        "id": _new_id(),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": reply.finish_reason,
            }
        ],
        "usage": _usage(reply),
    }


async def events(
    reply: Reply, first: str | None, model: str, *, with_usage: bool, error_body: Callable[[Exception], bytes]
) -> AsyncGenerator[bytes]:
    """The server-sent events of an answer that begins with the piece `first`, and goes on as it comes.

    Where there is no more because of an error, its body in the shape of the path is the last event.
    """
    head: ChatCompletionChunk = {
        "id": _new_id(),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        "choices": [],
    }
    if with_usage:
        head["usage"] = None

    def chunk(delta: Delta, finish_reason: FinishReason | None = None) -> bytes:
        choice: ChunkChoice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    piece = first
    try:
        while piece is not None:
            yield chunk({"content": piece})
            piece = await reply.next()
    except DOMAIN_ERRORS as error:
        yield b"data: " + error_body(error) + b"\n\n"
        return
    yield chunk({}, reply.finish_reason)
    if with_usage:
        yield _event({**head, "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """Events as they come; `until_sent` is exited when the last one was sent or the caller has left."""

    def __init__(self, content: AsyncGenerator[bytes], until_sent: AbstractContextManager[Any]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._until_sent = until_sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with self._until_sent:
            await super().__call__(scope, receive, send)


def _event(chunk: ChatCompletionChunk) -> bytes:
    """In ASCII: some clients split lines at every character that Unicode calls a line's end."""
    return f"data: {json.dumps(chunk)}\n\n".encode("ascii")


def _usage(reply: Reply) -> ChatUsage:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.tokens,
        "total_tokens": reply.prompt_tokens + reply.tokens,
        "prompt_tokens_details": {"cached_tokens": reply.reused_tokens},
    }


def _new_id() -> str:
    return f"chatcmpl-{uuid4().hex}"
