"""The account, or the emulator, that a command speaks to: credentials, region and clients."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import NoCredentialsError, NoRegionError

from ops.errors import UsageError
from stacks.config import Environment

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# An adapter answers within a minute or says that it is busy; SageMaker cuts it off then.
_CONNECT_TIMEOUT_SECONDS = 10
_READ_TIMEOUT_SECONDS = 70
# For as many requests at a time as a command makes.
_CONNECTIONS = 64


@dataclass(frozen=True)
class Aws:
    """Where requests go, and as whom."""

    session: boto3.Session
    region: str
    # None is AWS itself.
    endpoint_url: str | None

    def client(self, service: str, *, attempts: int = 3, region: str | None = None) -> Any:
        """A boto3 client of the service; `attempts` in all, where AWS asks for a retry."""
        return self.session.client(  # type: ignore[call-overload] # the service's name is a variable
            service,
            region_name=region or self.region,
            endpoint_url=self.endpoint_url,
            config=Config(
                retries={"mode": "standard", "total_max_attempts": attempts},
                connect_timeout=_CONNECT_TIMEOUT_SECONDS,
                read_timeout=_READ_TIMEOUT_SECONDS,
                max_pool_connections=_CONNECTIONS,
            ),
        )

    @property
    def is_emulator(self) -> bool:
        """Whether it is an emulator on this machine."""
        return self.endpoint_url is not None and _is_loopback(self.endpoint_url)


def connect(environment: Environment, endpoint_url: str | None = None) -> Aws:
    """The account of the terminal's credentials, in the environment's region.

    `endpoint_url` (or AWS_ENDPOINT_URL) leads elsewhere; on loopback, where the emulator lives, credentials and region
    may be left out. Raises UsageError for an address that is none, and botocore's errors where there are no credentials
    or no region.
    """
    url = endpoint_url or os.environ.get("AWS_ENDPOINT_URL") or None
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--endpoint-url is {url!r}; it must be an address such as http://127.0.0.1:4566")
    session = boto3.Session()
    on_loopback = url is not None and _is_loopback(url)
    if session.get_credentials() is None:
        if not on_loopback:
            raise NoCredentialsError
        session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test")  # noqa: S106 - the emulator's
    region = region_of(environment, session) or ("us-east-1" if on_loopback else None)
    if region is None:
        raise NoRegionError
    return Aws(session, region, url)


def region_of(environment: Environment, session: boto3.Session) -> str | None:
    """The environment's region, or the terminal's; None where there is none.

    AWS_REGION, which the CDK and AWS's other SDKs read, comes before boto3's own AWS_DEFAULT_REGION and the profile.
    """
    return environment.region or os.environ.get("AWS_REGION") or session.region_name


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK
