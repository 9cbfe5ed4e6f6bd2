"""Data capture: requests and answers of an endpoint as JSON lines in S3, written with its execution role."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from emulator.sagemaker.names import now

if TYPE_CHECKING:
    from emulator.aws import Params
    from emulator.sagemaker.container import Container

_random = random.SystemRandom()
_WHOLE = 100  # percent


def capture(container: Container, request_type: str, request: bytes, answer_type: str, answer: bytes) -> None:
    """Write what the endpoint's configuration wants of one call that succeeded; on a thread, an object per call.

    What the role may not write is lost, as on AWS, where the endpoint serves on.
    """
    config = container.plan.config.get("DataCaptureConfig") or {}
    if not config.get("EnableCapture") or _random.uniform(0, _WHOLE) >= config["InitialSamplingPercentage"]:
        return
    sides: Params = {"Input": (request_type, request), "Output": (answer_type, answer)}
    time = now()
    wanted = [option["CaptureMode"] for option in config["CaptureOptions"]]
    record = {
        "captureData": {
            f"endpoint{mode}": {
                "observedContentType": sides[mode][0],
                "mode": mode.upper(),
                "data": sides[mode][1].decode(errors="replace"),
                "encoding": "JSON",
            }
            for mode in wanted
            if mode in sides
        },
        "eventMetadata": {"eventId": str(uuid.uuid4()), "inferenceTime": f"{time:%Y-%m-%dT%H:%M:%SZ}"},
        "eventVersion": "0",
    }
    place = urlsplit(config["DestinationS3Uri"])
    name = f"{container.endpoint}/{container.plan.name}/{time:%Y/%m/%d/%H/%M-%S}-{uuid.uuid4()}.jsonl"
    key = f"{place.path.strip('/')}/{name}".lstrip("/")
    body = json.dumps(record, ensure_ascii=False).encode() + b"\n"

    def write() -> None:
        with contextlib.suppress(BotoCoreError, ClientError):
            container.clients.s3.put_object(Bucket=place.netloc, Key=key, Body=body)

    threading.Thread(target=write, name=f"capture {container.endpoint}", daemon=True).start()
