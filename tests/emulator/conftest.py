"""One emulator for all of these tests, with one image and one model's data in it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.emulator_fixture import ROOT, Emulator, running_emulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTAINER = Path(__file__).parent / "container"
REGISTRY = "000000000000.dkr.ecr.us-east-1.amazonaws.com"
ROLE = "arn:aws:iam::000000000000:role/sagemaker"
BUCKET = "models"
PREFIX = f"s3://{BUCKET}/one/"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """The shared emulator."""
    variables = {"EMULATOR_NO_CAPACITY": "ml.g6e.xlarge,ml.p5.48xlarge"}
    with running_emulator(tmp_path_factory.mktemp("emulator"), variables=variables) as running:
        s3 = running.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="one/weights.txt", Body=b"weights")
        s3.put_object(Bucket=BUCKET, Key="one/nested/vocabulary.txt", Body=b"words")
        yield running


@pytest.fixture(scope="session")
def docker(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Docker:
    """The `docker` of builds, with a home of its own."""
    return Docker(emulator, tmp_path_factory.mktemp("docker-home"))


@pytest.fixture(scope="session")
def image(docker: Docker) -> str:
    """The test image's name with its digest, pushed."""
    return push_image(docker, "server")


@pytest.fixture(scope="session", autouse=True)
def slow(hosting: Hosting) -> Slow:
    """What takes a minute by SageMaker's own limits, begun at once, so that all other tests run meanwhile."""
    return Slow(hosting)


@pytest.fixture(scope="session")
def hosting(emulator: Emulator, image: str) -> Hosting:
    """SageMaker with the test image."""
    return Hosting(emulator, image)


@dataclass(frozen=True)
class Docker:
    """Runs the shim as a build does."""

    emulator: Emulator
    home: Path

    def __call__(self, *words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `docker WORDS`."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), **self.emulator.environment}
        return subprocess.run(
            [ROOT / "emulator" / "bin" / "docker", *words],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )


def push_image(docker: Docker, repository: str, context: Path = CONTAINER) -> str:
    """Build and push an image into a new repository; its name with the digest."""
    docker.emulator.client("ecr").create_repository(repositoryName=repository, imageTagMutability="IMMUTABLE")
    name = f"{REGISTRY}/{repository}:1"
    for words in (("build", "-t", name, str(context)), ("push", name)):
        done = docker(*words)
        assert done.returncode == 0, done.stderr
    return docker("inspect", "--format", "{{index .RepoDigests 0}}", name).stdout.strip()


class Hosting:
    """Makes models, configurations and endpoints under names of their own."""

    def __init__(self, emulator: Emulator, image: str) -> None:
        self.emulator = emulator
        self.image = image
        self.api = emulator.client("sagemaker")
        self._runtime = emulator.client("sagemaker-runtime")

    def name(self) -> str:
        """A new name."""
        return f"thing-{next(_numbers)}"

    def model(self, *, data: dict[str, Any] | None = None, image: str | None = None, **environment: str) -> str:
        """A new model of the test image; its name."""
        source = {"S3Uri": PREFIX, "S3DataType": "S3Prefix", "CompressionType": "None"}
        container = {
            "Image": image or self.image,
            "Environment": environment,
            **(data or {"ModelDataSource": {"S3DataSource": source}}),
        }
        name = self.name()
        self.api.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)
        return name

    def variant(self, model: str, **members: Any) -> dict[str, Any]:
        """A variant `main`; a member given as None is left out."""
        variant = {
            "VariantName": "main",
            "ModelName": model,
            "InitialInstanceCount": 1,
            "InstanceType": "ml.c6i.xlarge",
            **members,
        }
        return {name: value for name, value in variant.items() if value is not None}

    def config(self, *variants: dict[str, Any], more: dict[str, Any] | None = None, **environment: Any) -> str:
        """A new configuration of these variants, or of one whose model has this environment; its name.

        `more` are its other members.
        """
        name = self.name()
        chosen = list(variants) or [self.variant(self.model(**environment))]
        self.api.create_endpoint_config(EndpointConfigName=name, ProductionVariants=chosen, **(more or {}))
        return name

    def endpoint(self, config: str) -> str:
        """A new endpoint, settled; its name."""
        name = self.name()
        self.api.create_endpoint(EndpointName=name, EndpointConfigName=config)
        self.settled(name)
        return name

    def settled(self, name: str) -> dict[str, Any]:
        """The endpoint's description once it is neither being created nor updated."""
        description: dict[str, Any] = {}

        def done() -> bool:
            description.update(self.api.describe_endpoint(EndpointName=name))
            return description["EndpointStatus"] in {"InService", "Failed"}

        wait_for(done)
        return description

    def invoke(self, name: str, body: dict[str, Any] | bytes | None = None, **parameters: Any) -> dict[str, Any]:
        """Invoke with JSON; the response, its body decoded."""
        content = body if isinstance(body, bytes) else json.dumps(body or {})
        response: dict[str, Any] = self._runtime.invoke_endpoint(EndpointName=name, Body=content, **parameters)
        return {**response, "Body": json.loads(response["Body"].read())}

    def ask_for_a_minute(self, name: str) -> None:
        """A request that is still under way when the emulator is stopped; how it ends does not matter."""
        with contextlib.suppress(ClientError, BotoCoreError):
            self.invoke(name, {"sleep": 60})


class Slow:
    """An endpoint whose container never answers /ping, and an invocation that takes too long."""

    def __init__(self, hosting: Hosting) -> None:
        silent = hosting.variant(hosting.model(BEHAVIOUR="silent"), ContainerStartupHealthCheckTimeoutInSeconds=60)
        self.silent = hosting.name()
        hosting.api.create_endpoint(EndpointName=self.silent, EndpointConfigName=hosting.config(silent))
        self._endpoint = hosting.endpoint(hosting.config())
        self._hosting = hosting
        self._error: ClientError | None = None
        self._thread = threading.Thread(target=self._invoke, daemon=True)
        self._thread.start()

    def invocation_error(self) -> ClientError:
        """What a request of 70 seconds ended with."""
        self._thread.join()
        assert self._error is not None, "the invocation was answered"
        return self._error

    def _invoke(self) -> None:
        try:
            self._hosting.invoke(self._endpoint, {"sleep": 70})
        except ClientError as error:
            self._error = error
        except BotoCoreError:
            """The emulator was stopped: no test waited for this."""


def is_running(pid: int) -> bool:
    """A process that has ended but that nobody has waited for yet does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    """Poll until the condition holds; fail after a time that no healthy machine needs."""
    ended = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if condition():
            return
        ended.wait(0.1)
    pytest.fail(f"still waiting after {seconds} s")
