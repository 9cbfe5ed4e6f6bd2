"""`make image`: container/Dockerfile on the stand-in for its base image, as CodeBuild builds it on the real one."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from tools.image.podman import ImageError, build, install, podman
from tools.image.stand_in import PYTHON, binding_source, make_stand_in
from tools.setup import CACHE, ROOT

IMAGE = "localhost/decision-endpoints/adapter:latest"
SBOM = "/opt/decision-endpoints/sbom.cdx.json"
_LOG = CACHE / "image.log"


def main() -> int:
    """Build, and say how large it is and how long it took. Returns the exit status."""
    try:
        install()
        base = make_stand_in()
        started = time.monotonic()
        make_image(base)
        seconds = time.monotonic() - started
        megabytes = (size(IMAGE) - size(base)) / 1e6
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    parts = json.loads(podman("run", "--rm", "--network", "none", "--entrypoint", "cat", IMAGE, SBOM))["components"]
    print(f"{IMAGE}: built in {seconds:.0f} s on {base}, adds {megabytes:.0f} MB and {len(parts)} packages to it")
    return 0


def make_image(base: str, *, image: str = IMAGE) -> None:
    """Build the adapter's image on `base` under the name `image`. Raises `ImageError`."""
    build(
        ROOT / "container",
        tag=image,
        arguments={
            "BASE_IMAGE": base,
            "BASE_DIGEST": podman("inspect", "--format", "{{.Digest}}", base),
            "PYTHON": PYTHON,
            "SOURCE_REVISION": _revision(),
        },
        contexts={"requirements": ROOT / "requirements", "binding": binding_source()},
        log=_LOG,
    )


def size(image: str) -> int:
    """The bytes of the image's layers, unpacked."""
    return int(podman("inspect", "--format", "{{.Size}}", image))


def _revision() -> str:
    """The commit that is checked out; marked where files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
