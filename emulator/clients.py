"""boto3 clients that speak to this emulator, for the parts that use its other services as any customer would."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from emulator.roles import ROOT, Credentials
from emulator.settings import REGION, Settings

if TYPE_CHECKING:
    from mypy_boto3_ecr import ECRClient
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_s3 import S3Client

# One session, whose loaded service models all clients share, and one lock: clients may be used by several threads, but
# not made by several at once.
_session: Any = boto3.session.Session()
_lock = threading.Lock()


class Clients:
    """The clients of one principal, made on first use. To be used off the event loop only."""

    def __init__(self, settings: Settings, credentials: Credentials = ROOT) -> None:
        self._settings = settings
        self._credentials = credentials
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

    @property
    def cloudwatch(self) -> Any:
        """CloudWatch, of which no stubs are installed."""
        return self._client("cloudwatch", Config())

    @property
    def ecr(self) -> ECRClient:
        """ECR."""
        client: ECRClient = self._client("ecr", Config())
        return client

    def _client(self, service: str, config: Config) -> Any:
        with _lock:
            if service not in self._clients:
                self._clients[service] = _session.client(
                    service,
                    endpoint_url=self._settings.url,
                    region_name=REGION,
                    aws_access_key_id=self._credentials.access_key_id,
                    aws_secret_access_key=self._credentials.secret_access_key,
                    aws_session_token=self._credentials.session_token,
                    verify=str(self._settings.certificate) if self._settings.certificate else None,
                    config=config,
                )
            return self._clients[service]
