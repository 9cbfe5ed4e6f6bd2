"""The arguments and options that commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.errors import UsageError
from stacks.checks import ConfigError
from stacks.config import DecisionEndpoint, Endpoint, Environment, environment_named

EnvironmentName = Annotated[str, typer.Argument(metavar="ENV", help="An environment of stacks/config.py.")]
OptionalEnvironmentName = Annotated[
    str | None, typer.Argument(metavar="[ENV]", help="An environment of stacks/config.py; not with --local.")
]
EndpointUrl = Annotated[
    str | None,
    typer.Option("--endpoint-url", metavar="URL", help="Speak to the emulator at this address instead of AWS."),
]
EndpointName = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="NAME", help="Which endpoint of the environment, as stacks/config.py names it."),
]
Local = Annotated[
    str | None,
    typer.Option("--local", metavar="URL", help="Ask an adapter directly, such as that of `make serve`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def environment(name: str) -> Environment:
    """The environment of that name. Raises UsageError, which lists the known ones."""
    try:
        return environment_named(name)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def endpoints(of: Environment, name: str | None) -> tuple[Endpoint, ...]:
    """All the environment's endpoints, or the one of that (short or full) name. Raises UsageError."""
    if name is None:
        return of.endpoints
    found = tuple(e for e in of.endpoints if name in (e.name, of.endpoint_name(e)))
    if not found:
        known = ", ".join(e.name for e in of.endpoints)
        raise UsageError(f"environment {of.name!r} has no endpoint {name!r}; it has: {known}")
    return found


def decision_endpoint(of: Environment, name: str | None) -> DecisionEndpoint:
    """The one endpoint that decides. Raises UsageError where there is none, or several and no name."""
    found = [e for e in endpoints(of, name) if isinstance(e, DecisionEndpoint)]
    if len(found) == 1:
        return found[0]
    if name is not None:
        raise UsageError(f"endpoint {name!r} of environment {of.name!r} writes text; it answers no decisions")
    known = ", ".join(e.name for e in found) or "none"
    raise UsageError(f"environment {of.name!r} has {len(found)} decision endpoints ({known}): choose with --endpoint")
