"""boto3 clients that speak to this emulator, for the parts that use its other services as any customer would."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from emulator.settings import REGION, Settings

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_s3 import S3Client


class Clients:
    """Made on first use, since botocore takes a while to load a service. To be used off the event loop only."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session = boto3.session.Session(
            aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION
        )

    @cached_property
    def s3(self) -> S3Client:
        """S3 by path-style addresses: bucket names do not resolve as hosts on loopback."""
        return self._session.client(
            "s3", endpoint_url=self._settings.url, config=Config(s3={"addressing_style": "path"})
        )

    @cached_property
    def logs(self) -> CloudWatchLogsClient:
        """CloudWatch Logs."""
        return self._session.client("logs", endpoint_url=self._settings.url)
