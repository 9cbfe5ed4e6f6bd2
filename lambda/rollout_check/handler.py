"""Custom resource that ends a deploy as failed where an endpoint does not serve what the deploy meant it to.

SageMaker may roll an update back, at an alarm's word, and leave the endpoint in service with its old configuration.
Resource properties: `EndpointName`, `EndpointConfigName` (the intended one), `Request` (a JSON body; empty for none).
"""

import logging
import time
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from mypy_boto3_sagemaker import SageMakerClient
    from mypy_boto3_sagemaker_runtime import SageMakerRuntimeClient

Event = dict[str, Any]

# An endpoint under load refuses with 503 and is none the worse for it: it is asked again, within the function's 5 min.
_ATTEMPTS = 10
_PAUSE_SECONDS = 10.0
_BUSY = 503

# The function's log format is JSON: Lambda itself writes a record and its extra fields as one object.
logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)


class RolloutError(Exception):
    """The endpoint does not serve what was deployed; its text is what the reader of the deploy sees."""


def on_event(event: Event, _context: object) -> Event:
    """Check on Create and Update; nothing is to be done on Delete."""
    properties = event["ResourceProperties"]
    name = properties["EndpointName"]
    if event["RequestType"] != "Delete":
        check_configuration(boto3.client("sagemaker"), name, properties["EndpointConfigName"])
        if properties["Request"]:
            # One attempt each: this function repeats what is worth repeating.
            runtime = boto3.client(
                "sagemaker-runtime", config=Config(read_timeout=65, retries={"total_max_attempts": 1})
            )
            check_answer(runtime, name, properties["Request"])
    return {"PhysicalResourceId": name}


def check_configuration(sagemaker: "SageMakerClient", name: str, intended: str) -> None:
    """Raise RolloutError unless the endpoint is in service with the intended configuration."""
    endpoint = sagemaker.describe_endpoint(EndpointName=name)
    reason = endpoint.get("FailureReason", "SageMaker gives no reason")
    if endpoint["EndpointStatus"] != "InService":
        raise RolloutError(f"endpoint {name} is {endpoint['EndpointStatus']}: {reason}")
    served = endpoint["EndpointConfigName"]
    if served != intended:
        raise RolloutError(
            f"endpoint {name} serves the configuration {served}, not {intended} of this deploy: "
            f"the update was rolled back ({reason})"
        )
    logger.info("serves the intended configuration", extra={"endpoint": name, "configuration": intended})


def check_answer(runtime: "SageMakerRuntimeClient", name: str, request: str) -> None:
    """Raise RolloutError unless the endpoint answers the request; a busy one is asked again."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            runtime.invoke_endpoint(EndpointName=name, ContentType="application/json", Body=request)
        except ClientError as error:
            if error.response.get("OriginalStatusCode") != _BUSY or attempt == _ATTEMPTS:
                raise RolloutError(f"endpoint {name} is in service and does not answer: {error}") from error
            logger.info("busy, asking again", extra={"endpoint": name, "attempt": attempt})
            time.sleep(_PAUSE_SECONDS)
        else:
            logger.info("answers", extra={"endpoint": name, "attempt": attempt})
            return
