"""Podman as a machine without a Docker daemon can run it: its packages, its settings and its own storage."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tools.setup import CACHE

# Commands, and Debian's packages that bring them.
_COMMANDS = {"podman": "podman", "runc": "runc", "mmdebstrap": "mmdebstrap"}
_CONTAINERS = CACHE / "containers"
_CONF = f"""\
[containers]
# Inside a sandbox root may not raise limits: what podman asks for by default is refused there.
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
# crun, podman's own choice, fails where both versions of cgroups are mounted.
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{_CONTAINERS}/temporary"
"""
# Images live below .cache: `make clean` takes them away.
_STORAGE_CONF = f"""\
[storage]
driver = "overlay"
graphroot = "{_CONTAINERS}/storage"
runroot = "{_CONTAINERS}/run"
"""


class ImageError(Exception):
    """An image cannot be built or run; the message says why."""


def install() -> None:
    """Install what is missing, as root by apt-get.

    Raises `ImageError`, which says what to type, where that cannot be.
    """
    missing = [package for command, package in _COMMANDS.items() if shutil.which(command) is None]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ImageError(f"missing: {', '.join(missing)}; install with: {' '.join(command)}")
    print(f"installing {', '.join(missing)}", flush=True)
    for step in (["apt-get", "update"], command):
        done = subprocess.run(
            step,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ImageError(f"{' '.join(step)} failed: {done.stdout.strip().splitlines()[-1]}")


def environment() -> dict[str, str]:
    """The process's environment with the settings that podman needs here."""
    _CONTAINERS.mkdir(parents=True, exist_ok=True)
    conf, storage = _CONTAINERS / "containers.conf", _CONTAINERS / "storage.conf"
    conf.write_text(_CONF)
    storage.write_text(_STORAGE_CONF)
    return {
        **os.environ,
        "CONTAINERS_CONF": str(conf),
        "CONTAINERS_STORAGE_CONF": str(storage),
        "BUILDAH_RUNTIME": "runc",
    }


def podman(*arguments: str | Path) -> str:
    """What the command prints, without its last line break. Raises `ImageError` with its complaint where it fails."""
    command = ["podman", *map(str, arguments)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(command[:3])} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def build(context: Path, *, tag: str, arguments: dict[str, str], contexts: dict[str, Path], log: Path) -> None:
    """Build the Dockerfile of `context`; all that is printed goes to `log`.

    RUN steps run in a chroot on this machine's network. `contexts` are named build contexts. Raises `ImageError` with
    the end of the log.
    """
    # pip trusts what this machine trusts, and finds packages where this machine does.
    settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_INDEX", "PIP_EXTRA"))}
    command: list[str | Path] = [
        *("podman", "build", "--quiet", "--isolation", "chroot", "--network", "host", "--format", "docker"),
        *("--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"),
        *(part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")),
        *(part for name, place in contexts.items() for part in ("--build-context", f"{name}={place}")),
        *(part for name in settings for part in ("--env", name)),
        *("--tag", tag, context),
    ]
    for config in (Path.home() / ".config" / "pip" / "pip.conf", Path("/etc/pip.conf")):
        if config.exists():
            command[2:2] = ["--volume", f"{config}:/etc/pip.conf:ro"]
            break
    with log.open("w") as file:
        done = subprocess.run(command, env=environment(), stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").strip().splitlines()[-15:])
        raise ImageError(f"podman build of {context} failed (all of it: {log}):\n{tail}")
