"""InvokeEndpoint in its three forms: a request passed to a container, with SageMaker's limits and errors."""

from __future__ import annotations

import http.client
import json
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from emulator.aws import AwsError, Response
from emulator.sagemaker import event_stream
from emulator.sagemaker.capture import capture
from emulator.settings import ACCOUNT, HOST, REGION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from emulator.sagemaker.container import Container
    from emulator.sagemaker.endpoints import Endpoints

TIMEOUT_SECONDS = 60.0
ASYNC_TIMEOUT_SECONDS = 3600.0
MAX_BODY_BYTES = 25 * 1024 * 1024
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_HEADER = "x-amzn-sagemaker-"
# Request headers that reach the container, by the name under which it gets them.
_PASSED_ON = ("content-type", "accept", f"{_HEADER}custom-attributes", f"{_HEADER}inference-id")


@dataclass(frozen=True)
class Invocation:
    """One request: which endpoint, which form of the operation (`invocations`, ...), and what was sent."""

    endpoint: str
    form: str
    headers: Mapping[str, str]
    body: bytes


def invoke(endpoints: Endpoints, invocation: Invocation) -> Response:
    """Answer `POST /endpoints/{endpoint}/{form}`. Blocks as long as the container takes, 60 s at most.

    An asynchronous one is answered at once. A stream is collected first, and arrives in one piece.
    """
    try:
        if invocation.form == "async-invocations":
            return _invoke_later(endpoints, invocation)
        return _invoke_now(endpoints, invocation, streamed=invocation.form == "invocations-response-stream")
    except AwsError as error:
        return error.response()


def _invoke_now(endpoints: Endpoints, invocation: Invocation, *, streamed: bool) -> Response:
    body = invocation.body
    if len(body) > MAX_BODY_BYTES:
        raise AwsError(
            "ValidationError",
            f"1 validation error detected: Value at 'body' failed to satisfy constraint: "
            f"Member must have length less than or equal to {MAX_BODY_BYTES}",
        )
    target = invocation.headers.get(f"{_HEADER}target-variant")
    with endpoints.serving(invocation.endpoint, target) as variant:
        if variant is None:
            if target and endpoints.variants(invocation.endpoint):
                raise AwsError("ValidationError", f"Variant {target} not found in endpoint {invocation.endpoint}.")
            raise _no_endpoint(invocation.endpoint)
        container = variant.container
        if "AsyncInferenceConfig" in container.plan.config:
            raise AwsError(
                "ValidationError", f"Endpoint {invocation.endpoint} is asynchronous: use InvokeEndpointAsync."
            )
        response, content = _ask(container, invocation.headers, body, TIMEOUT_SECONDS)
        content_type = response.headers.get("Content-Type", "application/octet-stream")
        capture(container, invocation.headers.get("content-type", ""), body, content_type, content)
    answer = {
        # Lower case: MiniStack would take "Content-Type" of an API's answer for its own to correct.
        "content-type": event_stream.CONTENT_TYPE if streamed else content_type,
        "x-Amzn-Invoked-Production-Variant": variant.name,
    }
    if streamed:
        answer["X-Amzn-SageMaker-Content-Type"] = content_type
        content = event_stream.message("PayloadPart", content)
    attributes = response.headers.get("X-Amzn-SageMaker-Custom-Attributes")
    if attributes is not None:
        answer["X-Amzn-SageMaker-Custom-Attributes"] = attributes
    return 200, answer, content


def _invoke_later(endpoints: Endpoints, invocation: Invocation) -> Response:
    """The body lies in S3, and so will the answer, or the error in its place."""
    with endpoints.serving(invocation.endpoint, None) as variant:
        if variant is None:
            raise _no_endpoint(invocation.endpoint)
        container = variant.container
    config = container.plan.config.get("AsyncInferenceConfig")
    if config is None:
        raise AwsError("ValidationError", f"Endpoint {invocation.endpoint} is not asynchronous: use InvokeEndpoint.")
    inference = invocation.headers.get(f"{_HEADER}inference-id") or str(uuid.uuid4())
    output = config["OutputConfig"]
    name = uuid.uuid4()
    locations = {"OutputLocation": f"{output['S3OutputPath'].rstrip('/')}/{name}.out"}
    if "S3FailurePath" in output:
        locations["FailureLocation"] = f"{output['S3FailurePath'].rstrip('/')}/{name}-error.out"
    threading.Thread(
        target=_answer_into_s3, args=(endpoints, invocation, locations), name=f"inference {name}", daemon=True
    ).start()
    headers = {f"X-Amzn-SageMaker-{key}": location for key, location in locations.items()}
    return 202, {"content-type": "application/json", **headers}, json.dumps({"InferenceId": inference}).encode()


def _answer_into_s3(endpoints: Endpoints, invocation: Invocation, locations: Mapping[str, str]) -> None:
    with endpoints.serving(invocation.endpoint, None) as variant:
        if variant is None:
            return
        s3 = variant.container.clients.s3
        try:
            bucket, key = _place(invocation.headers[f"{_HEADER}inputlocation"])
            body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            response, content = _ask(variant.container, invocation.headers, body, ASYNC_TIMEOUT_SECONDS)
            content_type = response.headers.get("Content-Type", "application/octet-stream")
            bucket, key = _place(locations["OutputLocation"])
            s3.put_object(Bucket=bucket, Key=key, Body=content, ContentType=content_type)
        except (AwsError, BotoCoreError, ClientError, KeyError) as error:
            if failure := locations.get("FailureLocation"):
                bucket, key = _place(failure)
                s3.put_object(Bucket=bucket, Key=key, Body=str(error).encode())


def _place(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    return parts.netloc, parts.path.lstrip("/")


def _ask(
    container: Container, headers: Mapping[str, str], body: bytes, timeout: float
) -> tuple[http.client.HTTPResponse, bytes]:
    """The container's answer; raises ModelError where it is not one."""
    passed = {header: headers[header] for header in _PASSED_ON if header in headers}
    connection = http.client.HTTPConnection(HOST, container.port, timeout=timeout)
    try:
        connection.request("POST", "/invocations", body, passed)
        response = connection.getresponse()
        content = response.read()
    except TimeoutError:
        raise _model_error(
            container,
            0,
            "Your invocation timed out while waiting for a response from container primary. Review the latency "
            "metrics for each container in Amazon CloudWatch, resolve the issue, and try again.",
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise _model_error(container, 0, f"The container closed the connection: {error}") from error
    finally:
        connection.close()
    if response.status >= _CLIENT_ERROR:
        raise _model_error(container, response.status, content.decode(errors="replace"))
    return response, content


def _no_endpoint(name: str) -> AwsError:
    return AwsError("ValidationError", f"Endpoint {name} of account {ACCOUNT} not found.")


def _model_error(container: Container, status: int, message: str) -> AwsError:
    side = "client" if _CLIENT_ERROR <= status < _SERVER_ERROR else "server"
    return AwsError(
        "ModelError",
        f"Received {side} error ({status}) from primary with message {json.dumps(message, ensure_ascii=False)}. "
        f"See the log group {container.log_group} in account {ACCOUNT} for more information.",
        status=424,
        OriginalStatusCode=status,
        OriginalMessage=message,
        LogStreamArn=f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{container.log_group}"
        f":log-stream:{container.log_stream}",
    )
