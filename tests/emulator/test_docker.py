"""The `docker` of builds: equal content has an equal digest, the registry's rules hold, the rest is refused."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.emulator.conftest import REGISTRY, Docker

HOST = f"{REGISTRY}/repository"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A build context with a Dockerfile."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text("print('main')\n")
    (tmp_path / "app" / "notes.txt").write_text("not for images\n")
    (tmp_path / ".dockerignore").write_text("**/*.txt\n!keep.txt\n")
    (tmp_path / "keep.txt").write_text("kept\n")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "Dockerfile").write_text(
        "ARG BASE\n"
        "ARG PLACE=/opt/default\n"
        "FROM ${BASE} AS made\n"
        "RUN make && \\\n"
        "    install\n"
        "FROM ${BASE}\n"
        "ARG PLACE\n"
        "ENV A=1 B=${PLACE}/b\n"
        "LABEL base=${BASE} place=${PLACE}\n"
        "WORKDIR ${PLACE}\n"
        "COPY --from=made /made /made\n"
        "COPY app app\n"
        "COPY --chmod=600 keep.txt /etc/kept\n"
        "COPY tool ./\n"
        'ENTRYPOINT ["python3", "-m", "app"]\n'
    )
    return tmp_path


def build(docker: Docker, context: Path, *words: str) -> str:
    """Build; the digest that it printed."""
    done = docker("buildx", "build", "--provenance=false", "--output", "type=docker", *words, str(context))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


def pushed(docker: Docker, name: str) -> tuple[dict[str, object], dict[str, tarfile.TarInfo]]:
    """The image's configuration and its layer's entries, as the registry has them."""
    store = docker.home / ".docker-process-mode" / name.replace("/", "%")
    with tarfile.open(fileobj=io.BytesIO((store / "layer").read_bytes())) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
    return json.loads((store / "config").read_bytes()), entries


def test_image_holds_what_the_last_stage_copies_and_sets(docker: Docker, context: Path) -> None:
    name = f"{HOST}:content"
    build(docker, context, "-t", name, "--build-arg", "BASE=base@sha256:1", "--build-arg", "PLACE=/opt/here")
    image, entries = pushed(docker, name)
    config = image["config"]
    assert config == {
        "Env": ["A=1", "B=/opt/here/b"],
        "Entrypoint": ["python3", "-m", "app"],
        "Cmd": [],
        "WorkingDir": "/opt/here",
        "Labels": {"base": "", "place": "/opt/here"},  # BASE is not declared again in the stage
    }
    files = {path: oct(entry.mode) for path, entry in entries.items() if entry.isfile()}
    assert files == {"opt/here/app/main.py": "0o644", "etc/kept": "0o600", "opt/here/tool": "0o755"}


def test_digest_depends_on_content_alone(docker: Docker, context: Path) -> None:
    base = ("--build-arg", "BASE=base")
    first = build(docker, context, *base)
    main = context / "app" / "main.py"
    main.touch()
    main.chmod(0o640)
    os.utime(main, (1, 1))
    (context / "app" / "notes.txt").write_text("ignored, so without effect\n")
    assert build(docker, context, *base) == first
    assert build(docker, context, "--build-arg", "BASE=other") != first
    main.write_text("print('changed')\n")
    assert build(docker, context, *base) != first


def test_push_pull_and_immutable_tags(docker: Docker, context: Path) -> None:
    ecr = docker.emulator.client("ecr")
    ecr.create_repository(repositoryName="repository", imageTagMutability="IMMUTABLE")
    token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    assert docker("login", "--username", "AWS", "--password-stdin", REGISTRY, stdin=token).returncode == 0
    name = f"{HOST}:1"
    digest = build(docker, context, "-t", name, "--build-arg", "BASE=base")
    assert docker("push", name).returncode == 0
    assert docker("inspect", "--format", "{{index .RepoDigests 0}}", name).stdout == f"{HOST}@{digest}\n"
    described = ecr.describe_images(repositoryName="repository")["imageDetails"]
    assert [(image["imageDigest"], image["imageTags"]) for image in described] == [(digest, ["1"])]
    assert docker("push", name).returncode == 0, "the same content under the same tag"
    assert docker("pull", f"{HOST}@{digest}").returncode == 0
    assert docker("tag", f"{HOST}@{digest}", f"{HOST}:2").returncode == 0
    assert docker("push", f"{HOST}:2").returncode == 0
    (context / "keep.txt").write_text("changed\n")
    build(docker, context, "-t", name, "--build-arg", "BASE=base")
    refused = docker("push", name)
    assert refused.returncode == 1
    assert "tag '1' is immutable" in refused.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ADD https://example.com /x", "line 16: ADD is not supported"),
        ("ENTRYPOINT python3", "line 16: ENTRYPOINT must be a JSON list"),
        ("COPY absent.py /x", "absent.py is not in the context"),
        ("COPY --parents a b /x", "COPY --parents is not supported"),
    ],
)
def test_dockerfile_that_is_not_understood_is_refused(docker: Docker, context: Path, line: str, words: str) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write(line + "\n")
    done = docker("build", "--build-arg", "BASE=base", str(context))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert words in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "image"), "expected login, build, tag, push, pull or inspect"),
        (("build", "--squash", "."), "unrecognized arguments: --squash"),
        (("build", "--platform", "linux/arm64", "."), "invalid choice: 'linux/arm64'"),
        (("push", "docker.io/library/busybox:1"), "no such image"),
        (("pull", "docker.io/library/busybox:1"), "known by digest only"),
        (("pull", f"{REGISTRY}/absent:1"), "absent"),
        (("login", "-u", "AWS", "--password-stdin", "docker.io"), "is not an ECR registry"),
    ],
)
def test_command_that_is_not_understood_is_refused(docker: Docker, words: tuple[str, ...], message: str) -> None:
    done = docker(*words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert message in done.stderr


@pytest.mark.parametrize("registry", ["public.ecr.aws/gallery", "763104351884.dkr.ecr.us-east-1.amazonaws.com"])
def test_base_of_another_registry_is_stood_for_and_can_be_built_on(
    docker: Docker, context: Path, registry: str
) -> None:
    name = f"{registry}/base@sha256:{'1' * 64}"
    pulled = docker("pull", name)
    assert (pulled.returncode, pulled.stdout) == (0, f"{name}: not fetched, an empty image stands for it\n")
    repository = f"bases-{registry[0]}"
    docker.emulator.client("ecr").create_repository(repositoryName=repository)
    own = f"{REGISTRY}/{repository}:copy"
    assert docker("tag", name, own).returncode == 0
    assert docker("push", own).returncode == 0
    config, entries = pushed(docker, own)
    assert config["config"] == {
        "Entrypoint": ["/usr/bin/serve"],
        "Labels": {"decision-endpoints.emulator.stands-for": name},
    }
    assert entries == {}
    build(docker, context, "--build-arg", f"BASE={own}")
    absent = docker("build", "--build-arg", f"BASE={REGISTRY}/{repository}:absent", str(context))
    assert absent.stderr == f"docker (process mode): image {REGISTRY}/{repository} has no absent\n"


def test_undeclared_build_argument_is_refused(docker: Docker, context: Path) -> None:
    done = docker("build", "--build-arg", "BASE=base", "--build-arg", "BSAE=typo", str(context))
    assert done.returncode == 1
    assert "does not declare: BSAE" in done.stderr
