"""The `docker` of builds in the emulator: login, build, tag, push, pull, inspect, as far as buildspecs use them.

Images of the account's own registry are real. One of another registry is never fetched: `pull` makes an empty image
that names it, once the registry, where it is another account's ECR, has let the caller in.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.images.build import Image, build, stand_in
from emulator.images.dockerfile import DockerfileError
from emulator.images.registry import ImageName, NoSuchImageError, Registry, RegistryError, is_ecr_host
from emulator.settings import ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Callable

DIGESTS_FORMAT = "{{index .RepoDigests 0}}"


class UsageError(Exception):
    """The command asks for what process mode does not do; one sentence."""


class Store:
    """Images that were built or pulled, by name, and passwords by registry, under the user's home."""

    def __init__(self) -> None:
        self._dir = Path.home() / ".docker-process-mode"
        self._passwords = self._dir / "passwords.json"

    def log_in(self, host: str, password: str) -> None:
        """Keep a registry's password."""
        passwords = {**self._known_passwords(), host: password}
        self._dir.mkdir(parents=True, exist_ok=True)
        self._passwords.touch(mode=0o600)
        self._passwords.write_text(json.dumps(passwords))

    def password(self, host: str) -> str | None:
        """What the last login at this registry gave."""
        return self._known_passwords().get(host)

    def _known_passwords(self) -> dict[str, str]:
        return dict(json.loads(self._passwords.read_text())) if self._passwords.exists() else {}

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
    host = options.host.removeprefix("https://")
    if not is_ecr_host(host):
        raise UsageError(f"login: {options.host} is not an ECR registry")
    password = sys.stdin.read().strip()
    if not password:
        raise UsageError("login: no password on standard input")
    Store().log_in(host, password)
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
    image = build(options.context, options.file or options.context / "Dockerfile", arguments, _find_base)
    for tag in options.tag:
        Store().put(tag, image)
    print(f"built {image.digest} in process mode: RUN steps were recorded, not executed")


def _find_base(name: str) -> None:
    """A base in the account's own registry must be there; others are recorded by name only."""
    image = ImageName.parse_any(name)
    if image and _is_own(image):
        _fetch(image)


def _tag(words: list[str]) -> None:
    if len(words) != 2:  # noqa: PLR2004
        raise UsageError("tag: expected an image and its new name")
    Store().put(words[1], Store().get(words[0]))


def _push(words: list[str]) -> None:
    name = _one("push", words)
    image = Store().get(name)
    target = ImageName.parse(name)
    registry = _registry(target)
    registry.push_blob(target, image.config)
    registry.push_blob(target, image.layer)
    digest = registry.push_manifest(target, image.manifest)
    print(f"{target.reference}: digest: {digest} size: {len(image.manifest)}")


def _pull(words: list[str]) -> None:
    name = _one("pull", words)
    foreign = ImageName.parse_any(name)
    if foreign and not _is_own(foreign):
        _pull_stand_in(name, foreign)
        return
    source = ImageName.parse(name)
    image = _fetch(source)
    Store().put(name, image)
    print(f"Digest: {image.digest}")


def _fetch(source: ImageName) -> Image:
    registry = _registry(source)
    raw = registry.manifest(source)
    manifest = json.loads(raw)
    config = registry.blob(source, manifest["config"]["digest"])
    layers = [registry.blob(source, item["digest"]) for item in manifest["layers"]]
    if len(layers) != 1:
        raise UsageError(f"{source.repository} has {len(layers)} layers; images made in process mode have one")
    return Image(raw, config, layers[0])


def _pull_stand_in(name: str, image: ImageName) -> None:
    if image.digest is None:
        raise UsageError(f"pull: {name} is in another registry, of which images are known by digest only")
    if is_ecr_host(image.host):
        # Asked for as Docker would: the registry lets us in, or it does not; more it cannot say here.
        with contextlib.suppress(NoSuchImageError):
            _registry(image).manifest(image)
        with contextlib.suppress(NoSuchImageError):
            _registry(image).blob(image, image.digest)
    Store().put(name, stand_in(name))
    print(f"{name}: not fetched, an empty image stands for it")


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


def _is_own(image: ImageName) -> bool:
    return is_ecr_host(image.host) and image.host.startswith(ACCOUNT)


def _registry(image: ImageName) -> Registry:
    url = os.environ.get("AWS_ENDPOINT_URL")
    if not url:
        raise UsageError("AWS_ENDPOINT_URL is not set: there is no emulator to serve ECR")
    return Registry(url, certificate=os.environ.get("AWS_CA_BUNDLE"), password=Store().password(image.host))
