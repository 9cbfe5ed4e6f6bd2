"""Builds an image in process mode: one layer of what the last stage copies from the context, and its configuration."""

from __future__ import annotations

import fnmatch
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from emulator.images import layer
from emulator.images.dockerfile import DockerfileError, Stage, parse
from emulator.images.registry import CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# The label of an image that has nothing of the one that it stands for but this: its name with its digest.
STANDS_FOR = "decision-endpoints.emulator.stands-for"
_EPOCH = "1970-01-01T00:00:00Z"  # in place of build times, which would change the digest


@dataclass(frozen=True)
class Image:
    """A built image's three parts."""

    manifest: bytes
    config: bytes
    layer: bytes

    @property
    def digest(self) -> str:
        """The digest that the registry will know it by."""
        return digest_of(self.manifest)


def build(
    context: Path, dockerfile: Path, build_args: Mapping[str, str], find_base: Callable[[str], None] = lambda _: None
) -> Image:
    """Build from a context folder. Equal inputs give an equal digest. Raises DockerfileError.

    `find_base` is called with the name of the base image and raises where there is none of it.
    """
    try:
        stage = parse(dockerfile.read_text(), build_args)
    except OSError as error:
        raise DockerfileError(f"the Dockerfile cannot be read: {error}") from error
    find_base(stage.base)
    tar, compressed = layer.pack(_files(context, stage))
    history: list[dict[str, object]] = [{"created": _EPOCH, "created_by": f"FROM {stage.base}", "empty_layer": True}]
    history += [
        {"created": _EPOCH, "created_by": f"RUN {run} # not executed", "empty_layer": True} for run in stage.runs
    ]
    history.append({"created": _EPOCH, "created_by": "COPY"})
    return _image(
        tar,
        compressed,
        history,
        {
            "Env": [f"{name}={value}" for name, value in stage.env.items()],
            "Entrypoint": stage.entrypoint,
            "Cmd": stage.cmd,
            "WorkingDir": stage.workdir,
            "Labels": stage.labels,
        },
    )


def stand_in(reference: str) -> Image:
    """An empty image in place of one that cannot be fetched without a network, named by its digest.

    Its own digest is another one, since a digest is of the content: whoever uses a copy asks its registry for it.
    """
    tar, compressed = layer.pack({})
    history = [{"created": _EPOCH, "created_by": f"stands for {reference}", "empty_layer": True}]
    history.append({"created": _EPOCH, "created_by": "COPY"})
    return _image(tar, compressed, history, {"Entrypoint": ["/usr/bin/serve"], "Labels": {STANDS_FOR: reference}})


def _image(tar: bytes, compressed: bytes, history: list[dict[str, object]], settings: dict[str, object]) -> Image:
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": _EPOCH,
            "config": settings,
            "history": history,
            "rootfs": {"type": "layers", "diff_ids": [digest_of(tar)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "size": len(config), "digest": digest_of(config)},
            "layers": [{"mediaType": LAYER_TYPE, "size": len(compressed), "digest": digest_of(compressed)}],
        }
    )
    return Image(manifest, config, compressed)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _files(context: Path, stage: Stage) -> dict[PurePosixPath, tuple[bytes, int]]:
    ignored = _ignore_patterns(context)
    files: dict[PurePosixPath, tuple[bytes, int]] = {}
    for copy in stage.copies:
        for source in copy.sources:
            found = sorted(context.glob(source.strip("/"))) if source.strip("/.") else [context]
            if not found:
                raise DockerfileError(f"COPY: {source} is not in the context {context}")
            for path in found:
                for file, target in _targets(path, copy.target):
                    if not _is_ignored(file.relative_to(context), ignored):
                        mode = layer.mode_of(file) if copy.chmod is None else copy.chmod
                        files[target] = (file.read_bytes(), mode)
    return files


def _targets(source: Path, target: str) -> Iterator[tuple[Path, PurePosixPath]]:
    """A folder's content goes into the target; a file becomes it, or goes into it where it ends in a slash."""
    if source.is_dir():
        for file in sorted(source.rglob("*")):
            if file.is_file():
                yield file, PurePosixPath(target) / file.relative_to(source).as_posix()
    else:
        yield source, PurePosixPath(target) / source.name if target.endswith("/") else PurePosixPath(target)


def _ignore_patterns(context: Path) -> list[str]:
    file = context / ".dockerignore"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]


def _is_ignored(path: Path, patterns: list[str]) -> bool:
    """The last pattern that matches a file or a folder above it decides; `!` takes it back in."""
    ignored = False
    names = [path.as_posix(), *(parent.as_posix() for parent in path.parents if parent.name)]
    for pattern in patterns:
        wanted = pattern.lstrip("!").strip("/")
        alternatives = {wanted, wanted.removeprefix("**/")}
        if any(fnmatch.fnmatch(name, form) for name in names for form in alternatives):
            ignored = not pattern.startswith("!")
    return ignored
