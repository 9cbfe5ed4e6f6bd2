"""AWS's JSON protocols over botocore's own service models: validation, dispatch, errors, CloudFormation's strings."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import botocore.session
from botocore.validate import ParamValidator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from botocore.model import ServiceModel, Shape, StructureShape

Params = dict[str, Any]
Response = tuple[int, dict[str, str], bytes]


_JAVA_CLASSES = {
    r"\p{L}": r"\w",
    r"\p{N}": r"\d",
    r"\p{Z}": r"\s",
    r"\p{Print}": r"[ -~]",
    r"\uD800\uDC00-\uDBFF\uDFFF": r"\U00010000-\U0010FFFF",
}


class AwsError(Exception):
    """An error that AWS would answer with; boto3 raises it as ClientError with this code."""

    def __init__(self, code: str, message: str, status: int = 400, **members: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.members = members

    def response(self) -> Response:
        """The error on the wire, for both of AWS's JSON protocols."""
        message = str(self)
        body = {"__type": self.code, "message": message, "Message": message, **self.members}
        headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-errortype": self.code}
        return self.status, headers, json.dumps(body).encode()


def invalid(message: str) -> AwsError:
    """AWS's answer to a request that breaks a rule."""
    return AwsError("ValidationException", message)


@lru_cache
def service_model(name: str) -> ServiceModel:
    """botocore's model of a service."""
    return botocore.session.get_session().get_service_model(name)


def input_shape(service: str, operation: str) -> Shape:
    """What an operation accepts."""
    return cast("Shape", service_model(service).operation_model(operation).input_shape)


def members(service: str, operation: str) -> set[str]:
    """The names of an operation's parameters."""
    return set(cast("StructureShape", input_shape(service, operation)).members)


def call(service: str, operations: Mapping[str, Callable[[Params], Params]], target: str, body: bytes) -> Response:
    """Answer one JSON request whose X-Amz-Target header is `target`."""
    operation = target.rpartition(".")[2]
    function = operations.get(operation)
    if function is None:
        unknown = f"the emulator has no operation {operation} of {service}"
        return AwsError("UnknownOperationException", unknown).response()
    return answer(lambda: function(_checked(body, input_shape(service, operation))))


def answer(operation: Callable[[], Params]) -> Response:
    """An operation's result on the wire, or its AwsError."""
    try:
        body = json.dumps(operation(), default=_timestamp).encode()
    except AwsError as error:
        return error.response()
    return 200, {"Content-Type": "application/x-amz-json-1.1"}, body


def _checked(body: bytes, shape: Shape) -> Params:
    try:
        params: Params = json.loads(body or b"{}")
    except ValueError:
        raise AwsError("SerializationException", "the body is not JSON") from None
    validate(params, shape)
    return params


def _timestamp(value: object) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def validate(params: Params, shape: Shape) -> None:
    """Check parameters against a shape. Raises ValidationException with every problem found.

    botocore's own validator knows types, required and unknown members and minima; the rest of the model's rules
    (maxima, patterns, enumerations), which AWS enforces on its side, are added.
    """
    report = ParamValidator().validate(params, shape)
    if report.has_errors():
        raise invalid(report.generate_report())
    problems = list(_violations(params, shape, ""))
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected: "
        raise invalid(count + "; ".join(problems))


def _violations(value: Any, shape: Any, path: str) -> Iterator[str]:
    """One sentence per broken rule, with AWS's form of a path: `productionVariants.1.member.instanceType`."""
    if shape.type_name == "structure":
        for name, member in value.items():
            own = name[0].lower() + name[1:]
            yield from _violations(member, shape.members[name], f"{path}.{own}" if path else own)
        return
    if shape.type_name == "list":
        for index, member in enumerate(value, start=1):
            yield from _violations(member, shape.member, f"{path}.{index}.member")
    if shape.type_name == "map":
        for name, member in value.items():
            yield from _violations(name, shape.key, f"{path}.{name} (key)")
            yield from _violations(member, shape.value, f"{path}.{name}")
    for rule in _broken_rules(value, shape):
        shown = f"'{value}' " if isinstance(value, (str, int, float)) else ""
        yield f"Value {shown}at '{path}' failed to satisfy constraint: Member must {rule}"


def _broken_rules(value: Any, shape: Any) -> Iterator[str]:
    sized = shape.type_name in {"string", "list", "map"}
    size, measure = (len(value), "length") if sized else (value, "value")
    maximum, pattern, allowed = (shape.metadata.get(rule) for rule in ("max", "pattern", "enum"))
    if maximum is not None and isinstance(size, (int, float)) and size > maximum:
        yield f"have {measure} less than or equal to {maximum}"
    if allowed and value not in allowed:
        yield f"satisfy enum value set: [{', '.join(allowed)}]"
    if pattern and isinstance(value, str) and not _python_pattern(pattern).fullmatch(value):
        yield f"satisfy regular expression pattern: {pattern}"


@lru_cache
def _python_pattern(pattern: str) -> re.Pattern[str]:
    """The models' patterns are Java's: its Unicode classes become the nearest that Python has."""
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)


def from_cloudformation(value: Any, shape: Any) -> Any:
    """A template's value in the model's types: CloudFormation hands numbers and booleans over as strings.

    A value that does not convert is returned as it is, for `validate` to name it.
    """
    if shape.type_name == "structure" and isinstance(value, dict):
        members = shape.members
        return {k: from_cloudformation(v, members[k]) if k in members else v for k, v in value.items()}
    if shape.type_name == "list" and isinstance(value, list):
        return [from_cloudformation(item, shape.member) for item in value]
    if shape.type_name == "map" and isinstance(value, list):  # tags are lists in all templates, maps in some APIs
        value = {item["Key"]: item["Value"] for item in value}
    if shape.type_name == "map" and isinstance(value, dict):
        return {k: from_cloudformation(v, shape.value) for k, v in value.items()}
    return _scalar(value, shape.type_name)


def _scalar(value: Any, type_name: str) -> Any:
    if type_name == "boolean" and str(value).lower() in {"true", "false"}:
        return str(value).lower() == "true"
    if type_name == "string" and isinstance(value, (int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    converters: dict[str, Callable[[str], Any]] = {"integer": int, "long": int, "float": float, "double": float}
    if type_name in converters and isinstance(value, str):
        try:
            return converters[type_name](value)
        except ValueError:
            return value
    return value
