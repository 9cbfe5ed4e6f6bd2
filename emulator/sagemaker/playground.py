"""A container's own page in a browser, below its endpoint's address: of the emulator only, AWS has no such path.

`GET /endpoints/NAME/` is the container's `/`. What the page asks goes to `invocations` beside it: to InvokeEndpoint.
"""

from __future__ import annotations

import http.client
import re
from typing import TYPE_CHECKING, Any

from emulator.aws import AwsError, Response
from emulator.settings import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.sagemaker.endpoints import Endpoints

TIMEOUT_SECONDS = 10.0
_BROWSED = re.compile(r"/endpoints/[^/]+/(?:invocations)?")
_PASSED_BACK = ("content-type", "content-security-policy", "cache-control", "referrer-policy", "x-content-type-options")


def page(endpoints: Endpoints, name: str) -> Response:
    """What the container of an endpoint answers at `/`."""
    with endpoints.serving(name, None) as variant:
        if variant is None:
            return AwsError("ValidationError", f"Endpoint {name} is not in service.", 404).response()
        connection = http.client.HTTPConnection(HOST, variant.container.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/")
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            return AwsError("ServiceUnavailable", f"The container of {name} gave no page: {error}", 503).response()
        finally:
            connection.close()
    headers = {header: value for header in _PASSED_BACK if (value := response.headers.get(header)) is not None}
    return response.status, headers, content


def route_unsigned(app: Any) -> None:
    """Have MiniStack's `app` take for SageMaker what a browser asks of an endpoint: it signs nothing.

    Where IAM is enforced, such a request is refused as every other that has no signature.
    """
    detect: Callable[..., str] = app.detect_service

    def detect_service(method: str, path: str, headers: dict[str, str], query: dict[str, Any]) -> str:
        if "authorization" not in headers and _BROWSED.fullmatch(path):
            return "sagemaker"
        return detect(method, path, headers, query)

    app.detect_service = detect_service
