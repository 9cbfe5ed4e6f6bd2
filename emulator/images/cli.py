"""The `docker` of builds in the emulator: login, build, tag, push, pull, inspect, as far as buildspecs use them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.images.build import Image, build
from emulator.images.dockerfile import DockerfileError
from emulator.images.registry import ImageName, Registry, RegistryError, digest_of, is_ecr_host

if TYPE_CHECKING:
    from collections.abc import Callable

DIGESTS_FORMAT = "{{index .RepoDigests 0}}"


class UsageError(Exception):
    """The command asks for what process mode does not do; one sentence."""


class Store:
    """Images that were built or pulled, by name, under the user's home."""

    def __init__(self) -> None:
        self._dir = Path.home() / ".docker-process-mode"

    def put(self, name: str, image: Image) -> None:
        """Keep an image under a name."""
        folder = self._folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("manifest", "config", "layer"):
            (folder / part).write_bytes(getattr(image, part))

    def get(self, name: str) -> Image:
        """Raises UsageError when there is none of this name."""
        folder = self._folder(name)
        if not (folder / "manifest").exists():
            raise UsageError(f"no such image: {name}")
        return Image(*((folder / part).read_bytes() for part in ("manifest", "config", "layer")))

    def _folder(self, name: str) -> Path:
        return self._dir / name.replace("/", "%")


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, or 1 with one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["buildx"]:
        words = words[1:]
    commands: dict[str, Callable[[list[str]], None]] = {
        "login": _login,
        "build": _build,
        "tag": _tag,
        "push": _push,
        "pull": _pull,
        "inspect": _inspect,
    }
    try:
        commands.get(words[0] if words else "", _unknown)(words[1:])
    except (UsageError, DockerfileError, RegistryError) as error:
        print(f"docker (process mode): {error}", file=sys.stderr)
        return 1
    return 0


def _unknown(_words: list[str]) -> None:
    raise UsageError("expected login, build, tag, push, pull or inspect")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{self.prog}: {message}")


def _login(words: list[str]) -> None:
    parser = _Parser(prog="login", add_help=False)
    parser.add_argument("--username", "-u", required=True)
    parser.add_argument("--password-stdin", action="store_true", required=True)
    parser.add_argument("host")
    options = parser.parse_args(words)
    if not is_ecr_host(options.host.removeprefix("https://")):
        raise UsageError(f"login: {options.host} is not an ECR registry")
    if not sys.stdin.read().strip():
        raise UsageError("login: no password on standard input")
    print("Login Succeeded")


def _build(words: list[str]) -> None:
    parser = _Parser(prog="build", add_help=False)
    parser.add_argument("--tag", "-t", action="append", default=[])
    parser.add_argument("--file", "-f", type=Path)
    parser.add_argument("--build-arg", action="append", default=[])
    # Another context serves COPY --from, which copies for RUN steps or from earlier stages: neither is executed.
    parser.add_argument("--build-context", action="append", default=[])
    parser.add_argument("--platform", choices=["linux/amd64"])
    parser.add_argument("--provenance", choices=["false"])
    parser.add_argument("--output", "-o", choices=["type=docker"])
    parser.add_argument("--progress")
    parser.add_argument("context", type=Path)
    options = parser.parse_args(words)
    arguments = dict(item.partition("=")[::2] for item in options.build_arg)
    image = build(options.context, options.file or options.context / "Dockerfile", arguments)
    for tag in options.tag:
        Store().put(tag, image)
    print(f"built {image.digest} in process mode: RUN steps were recorded, not executed")


def _tag(words: list[str]) -> None:
    if len(words) != 2:  # noqa: PLR2004
        raise UsageError("tag: expected an image and its new name")
    Store().put(words[1], Store().get(words[0]))


def _push(words: list[str]) -> None:
    name = _one("push", words)
    image = Store().get(name)
    target = ImageName.parse(name)
    registry = _registry()
    registry.push_blob(target, image.config)
    registry.push_blob(target, image.layer)
    digest = registry.push_manifest(target, image.manifest)
    print(f"{target.reference}: digest: {digest} size: {len(image.manifest)}")


def _pull(words: list[str]) -> None:
    name = _one("pull", words)
    source = ImageName.parse(name)
    registry = _registry()
    raw = registry.manifest(source)
    manifest = json.loads(raw)
    config = registry.blob(source, manifest["config"]["digest"])
    layers = [registry.blob(source, item["digest"]) for item in manifest["layers"]]
    if len(layers) != 1:
        raise UsageError(f"pull: {name} has {len(layers)} layers; images made in process mode have one")
    Store().put(name, Image(raw, config, layers[0]))
    print(f"Digest: {digest_of(raw)}")


def _inspect(words: list[str]) -> None:
    parser = _Parser(prog="inspect", add_help=False)
    parser.add_argument("--format", "-f", choices=[DIGESTS_FORMAT])
    parser.add_argument("image")
    options = parser.parse_args(words)
    digests = [ImageName.parse(options.image).with_digest(Store().get(options.image).digest)]
    print(digests[0] if options.format else json.dumps([{"RepoDigests": digests}]))


def _one(command: str, words: list[str]) -> str:
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError(f"{command}: expected one image")
    return words[0]


def _registry() -> Registry:
    url = os.environ.get("AWS_ENDPOINT_URL")
    if not url:
        raise UsageError("AWS_ENDPOINT_URL is not set: there is no emulator to serve ECR")
    return Registry(url)
