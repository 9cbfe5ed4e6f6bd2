"""Clients of AWS that reach nobody, for botocore's Stubber."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import boto3

from ops.aws import Aws


@functools.cache
def session() -> boto3.Session:
    """A session with credentials of nobody; one for all, since it reads the services' models."""
    return boto3.Session(aws_access_key_id="test", aws_secret_access_key="test")  # noqa: S106 - nobody's


def client(service: str, region: str = "us-east-1") -> Any:
    """A client of the service; typed as Any, since the stubs want the service's name as a literal."""
    anything: Any = session()
    return anything.client(service, region_name=region)


@dataclass(frozen=True)
class Account(Aws):
    """An account whose clients are these, by service; the price list is asked where it answers."""

    clients: dict[str, Any]

    def client(self, service: str, *, attempts: int = 3, region: str | None = None) -> Any:  # noqa: ARG002 - as in Aws
        """The client of the service."""
        assert region == ("us-east-1" if service == "pricing" else None)
        return self.clients[service]


def account(region: str = "us-east-1", **clients: Any) -> Account:
    """An account in this region; a service's name is written with underscores."""
    return Account(session(), region, None, {name.replace("_", "-"): one for name, one in clients.items()})
