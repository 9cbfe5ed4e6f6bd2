"""The `input` of OpenAI's Decisions API as a state: what the model is shown of messages, calls and outputs.

docs/decisions/0002-openai-decisions-input.md says why it has this form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from adapter.api.body import parse_json
from adapter.api.errors import ApiError, Fault, invalid
from adapter.api.schema import ANY_OBJECT

Where = tuple[str | int, ...]

# Types of parts by the role of the message; tool outputs hold what a user's message may.
_PARTS: dict[str, tuple[str, ...]] = {
    "user": ("input_text", "input_json"),
    "developer": ("input_text", "input_json"),
    "system": ("input_text", "input_json"),
    "assistant": ("output_text", "refusal"),
}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}

_TEXT_FIELDS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _part_schema(kind: str) -> dict[str, Any]:
    if kind in _TEXT_FIELDS:
        return _object({"type": {"const": kind}, _TEXT_FIELDS[kind]: {"type": "string"}})
    data = {"anyOf": [ANY_OBJECT, {"type": "array", "items": ANY_OBJECT}]}
    return _object({"type": {"const": kind}, "data": data})


def _content_schema(kinds: Sequence[str]) -> dict[str, Any]:
    parts = {"type": "array", "minItems": 1, "items": {"anyOf": [_part_schema(kind) for kind in kinds]}}
    return {"anyOf": [{"type": "string"}, parts]}


def _item_schemas() -> list[dict[str, Any]]:
    name = {"type": "string", "minLength": 1}
    messages = [
        _object({"role": {"const": role}, "content": _content_schema(kinds)}, {"type": {"const": "message"}})
        for role, kinds in _PARTS.items()
    ]
    calls = [
        _object(
            {"type": {"const": kind}, "call_id": name, "name": name, field: {"type": "string"}},
            {"namespace": {"type": ["string", "null"], "minLength": 1}},
        )
        for kind, field in _CALLS.items()
    ]
    outputs = [
        _object({"type": {"const": kind}, "call_id": name, "output": _content_schema(_PARTS["user"])})
        for kind in _OUTPUTS
    ]
    return [*messages, *calls, *outputs]


# JSON Schemas of what `state_of` and `parts_text` accept. They cannot say that an output names a call that is there.
INPUT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"anyOf": _item_schemas()}},
    ]
}
INSTRUCTIONS_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string", "minLength": 1}, _content_schema(_PARTS["user"])["anyOf"][1]]
}


def state_of(value: Any) -> Any:
    """The state: a string as it is, items as a list of objects.

    Raises `ApiError` 400 with the place of what is wrong.
    """
    if not isinstance(value, str | list) or not value:
        raise _wrong(("input",), "must be a nonempty string, or a nonempty list of messages, tool calls and outputs")
    if isinstance(value, str):
        return value
    calls = _number_calls(value)
    return [_item(item, calls, ("input", index)) for index, item in enumerate(value)]


def parts_text(value: Any, where: Where) -> str:
    """The text of a question's instructions: a string, or text and JSON parts, one a line.

    Raises `ApiError` 400.
    """
    content = _content(value, _PARTS["user"], where)
    parts = content if isinstance(value, list) and len(value) > 1 else [content]
    text = "\n".join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts)
    if not text:
        raise _wrong(where, "must not be empty")
    return text


def _number_calls(items: Sequence[Any]) -> dict[tuple[str, str], int]:
    """Numbers from 1 for the tool calls, by type and call id."""
    numbers: dict[tuple[str, str], int] = {}
    for index, item in enumerate(items):
        if isinstance(item, dict) and (kind := _type_of(item)) in _CALLS:
            call = (kind, _string(item, "call_id", ("input", index)))
            if call in numbers:
                raise _wrong(("input", index, "call_id"), f"{call[1]!r} is the id of another call already")
            numbers[call] = len(numbers) + 1
    return numbers


def _item(item: Any, calls: Mapping[tuple[str, str], int], where: Where) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise _wrong(where, "must be an object: a message, a tool call or its output")
    kind = _type_of(item)
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str) or role not in _PARTS:
            raise _wrong((*where, "role"), f"must be one of {', '.join(map(repr, _PARTS))}")
        return {"role": role, "content": _content(item.get("content"), _PARTS[role], (*where, "content"))}
    if kind in _CALLS:
        return _call(item, calls, where)
    if kind in _OUTPUTS:
        number = calls.get((_OUTPUTS[kind], _string(item, "call_id", where)))
        if number is None:
            raise _wrong((*where, "call_id"), f"{item['call_id']!r} is not the id of a {_OUTPUTS[kind]} in this input")
        return {"tool_output": number, "output": _content(item.get("output"), _PARTS["user"], (*where, "output"))}
    known = ", ".join(map(repr, ("message", *_CALLS, *_OUTPUTS)))
    raise _wrong((*where, "type"), f"must be one of {known}")


def _type_of(item: dict[str, Any]) -> str:
    kind = item.get("type", "message")
    return kind if isinstance(kind, str) else ""


def _call(item: dict[str, Any], calls: Mapping[tuple[str, str], int], where: Where) -> dict[str, Any]:
    name = _string(item, "name", where)
    if item.get("namespace") is not None:
        name = f"{_string(item, 'namespace', where)}.{name}"
    field = _CALLS[item["type"]]
    given = item.get(field)
    if not isinstance(given, str):
        raise _wrong((*where, field), "must be a string")
    shown = _unpacked(given) if field == "arguments" else given
    return {"tool_call": calls[item["type"], item["call_id"]], "name": name, field: shown}


def _unpacked(arguments: str) -> Any:
    """Arguments as the object that their JSON text means; a model may have written something else: then that text."""
    try:
        value = parse_json(arguments.encode("utf-8"))
    except ApiError:
        return arguments
    return value if isinstance(value, dict | list) else arguments


def _content(value: Any, allowed: Sequence[str], where: Where) -> Any:
    """A string as it is, the only part of a list by itself, several parts as a list."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _wrong(where, f"must be a string or a nonempty list of parts of type {' or '.join(map(repr, allowed))}")
    parts = [_part(part, allowed, (*where, index)) for index, part in enumerate(value)]
    return parts[0] if len(parts) == 1 else parts


def _part(part: Any, allowed: Sequence[str], where: Where) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image":
        raise _wrong(where, "images are not supported by this model")
    if not isinstance(kind, str) or kind not in allowed:
        raise _wrong(where, f"must be a part of type {' or '.join(map(repr, allowed))}")
    if kind == "input_json":
        data = part.get("data")
        if isinstance(data, dict) or (isinstance(data, list) and all(isinstance(entry, dict) for entry in data)):
            return data
        raise _wrong((*where, "data"), "must be an object or a list of objects")
    text = _text(part, _TEXT_FIELDS[kind], where)
    return {"refusal": text} if kind == "refusal" else text


def _text(holder: dict[str, Any], field: str, where: Where) -> str:
    value = holder.get(field)
    if not isinstance(value, str):
        raise _wrong((*where, field), "must be a string")
    return value


def _string(holder: dict[str, Any], field: str, where: Where) -> str:
    value = _text(holder, field, where)
    if not value:
        raise _wrong((*where, field), "must not be empty")
    return value


def _wrong(where: Where, message: str) -> ApiError:
    return invalid([Fault(where, message)])
