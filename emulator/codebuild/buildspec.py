"""Buildspec version 0.2: what is read of it, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

PHASES = ("install", "pre_build", "build", "post_build")
_TOP_LEVEL = {"version", "env", "phases", "artifacts", "cache"}
_ENV = {"shell", "variables", "exported-variables"}
_PHASE = {"runtime-versions", "commands", "finally", "on-failure"}


class BuildspecError(Exception):
    """The buildspec is wrong, or asks for what the emulator does not do; one sentence."""


@dataclass(frozen=True)
class Phase:
    """One phase's commands. `continue_on_failure` is `on-failure: CONTINUE`."""

    commands: list[str]
    finally_commands: list[str]
    continue_on_failure: bool


@dataclass(frozen=True)
class Buildspec:
    """A checked buildspec."""

    shell: str
    variables: dict[str, str]
    exported: list[str]
    phases: dict[str, Phase]


def parse(text: str) -> Buildspec:
    """Read YAML (so JSON too). Raises BuildspecError; what the emulator would skip silently is an error as well."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BuildspecError(f"the buildspec is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise BuildspecError("the buildspec is not a mapping")
    if str(document.get("version")) != "0.2":
        raise BuildspecError(f"buildspec version {document.get('version')} is not supported: 0.2 is")
    _known(document, _TOP_LEVEL, "the buildspec")
    env = document.get("env") or {}
    _known(env, _ENV, "env")
    phases = document.get("phases") or {}
    _known(phases, set(PHASES), "phases")
    shell = env.get("shell", "sh")
    if shell not in {"bash", "/bin/sh", "sh"}:
        raise BuildspecError(f"env.shell {shell} is not supported: bash and sh are")
    return Buildspec(
        shell="bash" if shell == "bash" else "sh",
        variables={str(name): _text(value) for name, value in (env.get("variables") or {}).items()},
        exported=[str(name) for name in env.get("exported-variables") or []],
        phases={name: _phase(name, phases[name] or {}) for name in PHASES if name in phases},
    )


def _phase(name: str, body: dict[str, Any]) -> Phase:
    _known(body, _PHASE, f"phases.{name}")
    on_failure = body.get("on-failure", "ABORT" if name != "build" else None)
    if on_failure not in {"ABORT", "CONTINUE", None}:
        raise BuildspecError(f"phases.{name}.on-failure {on_failure} is not supported: ABORT and CONTINUE are")
    return Phase(_commands(name, body, "commands"), _commands(name, body, "finally"), on_failure != "ABORT")


def _commands(phase: str, body: dict[str, Any], key: str) -> list[str]:
    commands = body.get(key) or []
    commands = [commands] if isinstance(commands, str) else commands
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise BuildspecError(f"phases.{phase}.{key} is not a list of strings")
    return commands


def _known(body: object, allowed: set[str], where: str) -> None:
    if not isinstance(body, dict):
        raise BuildspecError(f"{where} is not a mapping")
    if unknown := sorted(map(str, body.keys() - allowed)):
        raise BuildspecError(f"{where} has {', '.join(unknown)}: the emulator supports {', '.join(sorted(allowed))}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
