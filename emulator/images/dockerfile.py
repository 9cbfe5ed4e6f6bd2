"""Reads a Dockerfile as far as process mode needs it: what its last stage copies, sets and starts."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VARIABLE = re.compile(r"\\\$|\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")
_FLAG = re.compile(r"--(?P<name>[a-z-]+)(?:=(?P<value>\S+))?\s+")
# Known, and without effect on a process: the process runs as its user, and its port comes from the environment.
_NO_EFFECT = {"EXPOSE", "USER", "STOPSIGNAL", "HEALTHCHECK"}


class DockerfileError(Exception):
    """The Dockerfile has what process mode does not understand; the message has its line."""


@dataclass(frozen=True)
class Copy:
    """A COPY from the build context."""

    sources: list[str]
    target: str
    chmod: int | None


@dataclass
class Stage:
    """A build stage. RUN steps are kept as text: they are recorded, not executed."""

    base: str
    name: str
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    copies: list[Copy] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)


def parse(text: str, build_args: Mapping[str, str]) -> Stage:
    """The last stage. Raises DockerfileError on anything that is not understood."""
    stages: list[Stage] = []
    global_args: dict[str, str] = {}
    args: dict[str, str] = {}
    used: set[str] = set()
    for line, keyword, rest in _instructions(text):
        try:
            if keyword == "ARG":
                name, _, default = _expand(rest, {**args, **(global_args if not stages else {})}).partition("=")
                # An ARG in a stage takes its default from the ARG before the first FROM.
                value = build_args.get(name, default or global_args.get(name, ""))
                used.add(name)
                args[name] = value
                if not stages:
                    global_args[name] = value
            elif keyword == "FROM":
                stages.append(_stage(rest, global_args, stages))
                args = {}
            else:
                _apply(stages, keyword, rest, args)
        except DockerfileError as error:
            raise DockerfileError(f"Dockerfile line {line}: {error}") from None
    if not stages:
        raise DockerfileError("the Dockerfile has no FROM")
    if unused := sorted(build_args.keys() - used):
        raise DockerfileError(f"build arguments that the Dockerfile does not declare: {', '.join(unused)}")
    return stages[-1]


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, keyword and rest of each instruction, continuation lines joined."""
    joined, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        start = start if joined else number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        keyword, _, rest = (joined + line).partition(" ")
        yield start, keyword.upper(), rest.strip()
        joined = ""
    if joined:
        raise DockerfileError(f"Dockerfile line {start}: the instruction does not end")


def _stage(rest: str, args: Mapping[str, str], earlier: list[Stage]) -> Stage:
    words = [word for word in _expand(rest, args).split() if not word.startswith("--platform")]
    if len(words) not in {1, 3} or (len(words) == 3 and words[1].upper() != "AS"):  # noqa: PLR2004
        raise DockerfileError(f"FROM {rest}: expected FROM <image> [AS <name>]")
    name = words[2] if len(words) > 1 else str(len(earlier))
    base = next((stage for stage in earlier if stage.name == words[0]), None)
    if base is None:
        return Stage(words[0], name)
    return Stage(
        base.base,
        name,
        {**base.env},
        {**base.labels},
        base.workdir,
        [*base.copies],
        [*base.runs],
        base.entrypoint,
        base.cmd,
    )


def _apply(stages: list[Stage], keyword: str, rest: str, args: Mapping[str, str]) -> None:
    if not stages:
        raise DockerfileError(f"{keyword} before the first FROM")
    stage = stages[-1]
    variables = {**args, **stage.env}
    if keyword == "ENV":
        stage.env |= _pairs(rest, variables)
    elif keyword == "LABEL":
        stage.labels |= _pairs(rest, variables)
    elif keyword == "WORKDIR":
        stage.workdir = _join(stage.workdir, _expand(rest, variables))
    elif keyword == "COPY":
        _copy(stage, rest, variables)
    elif keyword == "RUN":
        stage.runs.append(rest)
    elif keyword in {"ENTRYPOINT", "CMD"}:
        setattr(stage, keyword.lower(), _exec_form(keyword, rest))
    elif keyword not in _NO_EFFECT:
        raise DockerfileError(f"{keyword} is not supported in process mode")


def _copy(stage: Stage, rest: str, variables: Mapping[str, str]) -> None:
    chmod = None
    while match := _FLAG.match(rest):
        name, value = match["name"], match["value"] or ""
        rest = rest[match.end() :]
        if name == "from":
            return  # comes out of a RUN step, which is not executed
        if name == "chmod":
            chmod = int(value, 8)
        elif name not in {"chown", "link"}:
            raise DockerfileError(f"COPY --{name} is not supported in process mode")
    words = [str(word) for word in json.loads(rest)] if rest.startswith("[") else shlex.split(_expand(rest, variables))
    if len(words) < 2:  # noqa: PLR2004
        raise DockerfileError(f"COPY {rest}: expected sources and a destination")
    target = _join(stage.workdir, words[-1]) + ("/" if words[-1].endswith(("/", ".")) or len(words) > 2 else "")  # noqa: PLR2004
    stage.copies.append(Copy(words[:-1], target, chmod))


def _pairs(rest: str, variables: Mapping[str, str]) -> dict[str, str]:
    """`A=b C="d e"`, or the old form `A b`."""
    words = shlex.split(_expand(rest, variables))
    if "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    if bad := next((word for word in words if "=" not in word), None):
        raise DockerfileError(f"{bad} is not <name>=<value>")
    return dict(word.split("=", 1) for word in words)


def _exec_form(keyword: str, rest: str) -> list[str]:
    try:
        words = json.loads(rest)
    except ValueError:
        words = None
    if not isinstance(words, list):
        raise DockerfileError(f"{keyword} must be a JSON list in process mode")
    return [str(word) for word in words]


def _expand(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] == "\\$":
            return "$"
        name = match["braced"] or match["plain"]
        return variables.get(name) or match["default"] or ""

    return _VARIABLE.sub(value, text)


def _join(base: str, path: str) -> str:
    joined = path if path.startswith("/") else f"{base.rstrip('/')}/{path}"
    parts = [part for part in joined.split("/") if part not in {"", "."}]
    return "/" + "/".join(parts)
