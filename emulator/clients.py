"""boto3 clients that speak to this emulator, for the parts that use its other services as any customer would."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from emulator.settings import REGION, Settings

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_s3 import S3Client


class Clients:
    """Made on first use, since botocore takes a while to load a service. To be used off the event loop only."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.url
        self._lock = threading.Lock()  # clients may be shared by threads, but not made by several at once
        self._clients: dict[str, Any] = {}

    @property
    def s3(self) -> S3Client:
        """S3 by path-style addresses: bucket names do not resolve as hosts on loopback."""
        client: S3Client = self._client("s3", Config(s3={"addressing_style": "path"}))
        return client

    @property
    def logs(self) -> CloudWatchLogsClient:
        """CloudWatch Logs."""
        client: CloudWatchLogsClient = self._client("logs", Config())
        return client

    def _client(self, service: str, config: Config) -> Any:
        with self._lock:
            if service not in self._clients:
                session: Any = boto3.session.Session()  # its overloads want a literal name
                self._clients[service] = session.client(
                    service,
                    endpoint_url=self._url,
                    region_name=REGION,
                    aws_access_key_id="test",
                    aws_secret_access_key="test",  # noqa: S106 - the emulator's public one
                    config=config,
                )
            return self._clients[service]
