"""What the emulator's builds and containers are made with."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.clients import Clients
from emulator.images.registry import Registry

if TYPE_CHECKING:
    from emulator.processes import Processes
    from emulator.roles import Credentials, Roles
    from emulator.settings import Settings


@dataclass(frozen=True)
class Workshop:
    """One emulator's settings, its processes and its account's roles."""

    settings: Settings
    processes: Processes
    roles: Roles

    def clients(self, credentials: Credentials) -> Clients:
        """Clients of this emulator that sign with these credentials."""
        return Clients(self.settings, credentials)

    def registry(self, clients: Clients) -> Registry:
        """The registry, for a principal that asks for a token first. Raises botocore's errors where it may not."""
        certificate = self.settings.certificate
        (data,) = clients.ecr.get_authorization_token()["authorizationData"]
        password = base64.b64decode(data["authorizationToken"]).decode().partition(":")[2]
        return Registry(self.settings.url, certificate=str(certificate) if certificate else None, password=password)

    def aws_environment(self, credentials: Credentials) -> dict[str, str]:
        """The variables by which AWS's tools in a process reach this emulator, as this principal."""
        certificate = self.settings.certificate
        return {
            "AWS_ENDPOINT_URL": self.settings.url,
            **({"AWS_CA_BUNDLE": str(certificate)} if certificate else {}),
            **credentials.environment,
        }
