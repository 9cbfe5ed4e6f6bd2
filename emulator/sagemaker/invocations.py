"""InvokeEndpoint: one request passed to the container of a variant, with SageMaker's limits and errors."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING

from emulator.aws import AwsError, Response
from emulator.settings import ACCOUNT, HOST, REGION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from emulator.sagemaker.container import Container
    from emulator.sagemaker.endpoints import Endpoints
    from emulator.sagemaker.fleet import Variant

TIMEOUT_SECONDS = 60.0
MAX_BODY_BYTES = 25 * 1024 * 1024
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
# Request headers that reach the container, by the name under which it gets them.
_PASSED_ON = ("content-type", "accept", "x-amzn-sagemaker-custom-attributes", "x-amzn-sagemaker-inference-id")


def invoke(endpoints: Endpoints, name: str, headers: Mapping[str, str], body: bytes) -> Response:
    """Answer `POST /endpoints/{name}/invocations`. Blocks as long as the container takes, 60 s at most."""
    try:
        return _invoke(endpoints, name, headers, body)
    except AwsError as error:
        return error.response()


def _invoke(endpoints: Endpoints, name: str, headers: Mapping[str, str], body: bytes) -> Response:
    if len(body) > MAX_BODY_BYTES:
        raise AwsError(
            "ValidationError",
            f"1 validation error detected: Value at 'body' failed to satisfy constraint: "
            f"Member must have length less than or equal to {MAX_BODY_BYTES}",
        )
    target = headers.get("x-amzn-sagemaker-target-variant")
    with endpoints.serving(name, target) as variant:
        if variant is None:
            if target and endpoints.variants(name):
                raise AwsError("ValidationError", f"Variant {target} not found in endpoint {name}.")
            raise AwsError("ValidationError", f"Endpoint {name} of account {ACCOUNT} not found.")
        return _ask(variant, headers, body)


def _ask(variant: Variant, headers: Mapping[str, str], body: bytes) -> Response:
    container = variant.container
    passed = {header: headers[header] for header in _PASSED_ON if header in headers}
    connection = http.client.HTTPConnection(HOST, container.port, timeout=TIMEOUT_SECONDS)
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
    answer = {
        # Lower case: MiniStack would take "Content-Type" of an API's answer for its own to correct.
        "content-type": response.headers.get("Content-Type", "application/octet-stream"),
        "x-Amzn-Invoked-Production-Variant": variant.name,
    }
    attributes = response.headers.get("X-Amzn-SageMaker-Custom-Attributes")
    if attributes is not None:
        answer["X-Amzn-SageMaker-Custom-Attributes"] = attributes
    return 200, answer, content


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
