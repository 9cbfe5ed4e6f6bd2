"""One model container as a process: image unpacked, model data fetched, its paths mapped into a folder."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from emulator.images.build import STANDS_FOR
from emulator.images.layer import ArchiveError, unpack
from emulator.images.registry import ImageName, RegistryError, digest_of
from emulator.logs import LogFollower
from emulator.roles import RoleError
from emulator.sagemaker.catalog import VariantPlan, container_of
from emulator.settings import HOST, REGION

if TYPE_CHECKING:
    from emulator.clients import Clients
    from emulator.processes import Child
    from emulator.workshop import Workshop

DEFAULT_STARTUP_SECONDS = 600  # ContainerStartupHealthCheckTimeoutInSeconds, when a variant does not set it
PING_SECONDS = 2.0  # SageMaker's limit for one answer to /ping
PING_INTERVAL_SECONDS = 0.2
LAST_LOG_CHARACTERS = 500
_PYTHON = {"python", "python3"}
_TEXT_SERVER = Path(__file__).with_name("text_server.py")
# There is no GPU here: what a model's environment puts on one stays on the CPU.
_GPU_LAYERS = ("SEMIF_N_GPU_LAYERS", "SM_LLAMA_CPP_N_GPU_LAYERS")
# An instance has more processors than this machine may have, and more threads than processors hinder one another.
_THREADS = ("SEMIF_THREADS", "SM_LLAMA_CPP_THREADS")
_OK = 200


class ContainerError(Exception):
    """A container could not be started; the message is an endpoint's FailureReason."""


class Container:
    """The process of one variant, from its image to its end. Not started by the constructor.

    Image, model and log are fetched and written with the model's execution role. Instance types, pools' included, have
    no effect on the process: it runs on this machine's processors, with no layer on a GPU. An image that stands for a
    base without being one (`images.build.stand_in`) is run by `text_server.py`.
    """

    def __init__(self, workshop: Workshop, endpoint: str, plan: VariantPlan, instance: str) -> None:
        self.plan = plan
        self.specified_image: str = container_of(plan.model)["Image"]
        self.resolved_image = ""
        self.port = 0
        self.endpoint = endpoint
        self.log_group = f"/aws/sagemaker/Endpoints/{endpoint}"
        self.log_stream = f"{plan.name}/{instance}"
        self._workshop = workshop
        endpoint_dir = workshop.settings.state_dir / "endpoints" / endpoint
        self._dir = endpoint_dir / f"{plan.name}-{instance}"
        self._log = endpoint_dir / f"{plan.name}-{instance}.log"
        self._child: Child | None = None
        self._follower: LogFollower | None = None

    def start(self) -> None:
        """Fetch the image and the model and start the process. Raises ContainerError."""
        if self.plan.instance_type is None:
            raise ContainerError(
                f"Unable to provision requested ML compute capacity for production variant {self.plan.name} due to "
                "InsufficientInstanceCapacity error. Please retry using a different ML instance type or after some "
                "time."
            )
        root, model_dir, home = (self._dir / name for name in ("image", "model", "home"))
        for folder in (root, model_dir, home):
            folder.mkdir(parents=True)
        config = self._unpack_image(root)
        self._fetch_model(model_dir)
        self.port = _free_port()
        argv, cwd, env = self._command(config, root)
        variables: dict[str, str] = container_of(self.plan.model).get("Environment", {})
        env |= variables
        # What stands for the container's fixed places comes last: nothing in a model may move them.
        env |= _fitted_to_this_machine(variables)
        env |= {
            "HOME": str(home),
            "SEMIF_MODEL_DIR": str(model_dir),
            "SEMIF_HOST": HOST,
            "SEMIF_PORT": str(self.port),
        }
        if self.plan.model.get("EnableNetworkIsolation"):
            env["EMULATOR_ISOLATED"] = "1"  # for the text server, which would fetch a model
        self._follower = LogFollower(self.clients, self._log, self.log_group, self.log_stream)
        try:
            with self._log.open("ab") as output:
                self._child = self._workshop.processes.start(argv, cwd=cwd, env=env, output=output)
        except (OSError, RuntimeError) as error:
            raise ContainerError(
                f"CannotStartContainerError for production variant {self.plan.name}: {error}"
            ) from error

    def wait_until_healthy(self) -> None:
        """Poll /ping until it answers 200. Raises ContainerError on the time-out or when the process ends."""
        timeout = self.plan.variant.get("ContainerStartupHealthCheckTimeoutInSeconds", DEFAULT_STARTUP_SECONDS)
        deadline = time.monotonic() + timeout
        while not self._answers_ping():
            exit_code = self._child.exit_code() if self._child else None
            if exit_code is not None:
                raise ContainerError(self._ping_failure(f"the process ended with {_ending(exit_code)}"))
            if time.monotonic() > deadline:
                raise ContainerError(self._ping_failure(f"no 200 in {timeout} s"))
            time.sleep(PING_INTERVAL_SECONDS)

    def stop(self) -> None:
        """End the process (SIGTERM, SIGKILL after 30 s) and remove its files, but for the log."""
        if self._child:
            self._child.stop()
        if self._follower:
            self._follower.stop()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _ping_failure(self, detail: str) -> str:
        """AWS's words, and what AWS leaves for its reader to find in the log."""
        lines = self._log.read_text(errors="replace").splitlines()
        last = next((line.strip()[:LAST_LOG_CHARACTERS] for line in reversed(lines) if line.strip()), "none")
        return (
            f"The primary container for production variant {self.plan.name} did not pass the ping health check. "
            f"Please check CloudWatch logs for this endpoint. ({detail}; last log line: {last})"
        )

    def _answers_ping(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PING_SECONDS)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == _OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @cached_property
    def clients(self) -> Clients:
        """Clients with the credentials of the model's execution role. Raises ContainerError where there are none."""
        role = self.plan.model["ExecutionRoleArn"]
        try:
            return self._workshop.clients(self._workshop.roles.assume(role, "sagemaker.amazonaws.com", "SageMaker"))
        except RoleError as error:
            raise ContainerError(str(error)) from error

    def _unpack_image(self, root: Path) -> dict[str, Any]:
        """Unpack every layer; returns the image's configuration (`Env`, `Entrypoint`, `Cmd`, `WorkingDir`)."""
        try:
            image = ImageName.parse(self.specified_image)
            registry = self._workshop.registry(self.clients)
            raw = registry.manifest(image)
            manifest = json.loads(raw)
            self.resolved_image = image.with_digest(digest_of(raw))
            for layer in manifest["layers"]:
                unpack(registry.blob(image, layer["digest"]), root)
            config = registry.blob(image, manifest["config"]["digest"])
        except (RegistryError, KeyError, ArchiveError, BotoCoreError, ClientError) as error:
            raise ContainerError(
                f"CannotStartContainerError for production variant {self.plan.name}: {error}"
            ) from error
        return dict(json.loads(config).get("config") or {})

    def _fetch_model(self, target: Path) -> None:
        container = container_of(self.plan.model)
        source = container.get("ModelDataSource", {}).get("S3DataSource")
        uri = source["S3Uri"] if source else container.get("ModelDataUrl")
        if uri is None:
            return
        parts = urlsplit(uri)
        bucket, key = parts.netloc, parts.path.lstrip("/")
        try:
            if source and source["S3DataType"] == "S3Prefix":
                self._download_prefix(bucket, key, target)
            else:
                unpack(self.clients.s3.get_object(Bucket=bucket, Key=key)["Body"].read(), target)
        except (BotoCoreError, ClientError, ArchiveError) as error:
            raise ContainerError(
                f"Failed to download model data for production variant {self.plan.name} from {uri}: {error}"
            ) from error

    def _download_prefix(self, bucket: str, prefix: str, target: Path) -> None:
        s3 = self.clients.s3
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [item["Key"] for found in pages for item in found.get("Contents", [])]
        if not keys:
            raise ContainerError(
                f"Failed to download model data for production variant {self.plan.name}: "
                f"no objects under s3://{bucket}/{prefix}"
            )
        for key in keys:
            path = target / key.removeprefix(prefix)
            if not path.resolve().is_relative_to(target):
                raise ContainerError(f"the key {key} leads out of the model's folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not key.endswith("/"):
                s3.download_file(bucket, key, str(path))

    def _command(self, config: dict[str, Any], root: Path) -> tuple[list[str], Path, dict[str, str]]:
        """Argument list, working directory and environment of `docker run IMAGE serve`, mapped into the folder."""
        env = {"PATH": os.environ.get("PATH", os.defpath), "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}
        for item in config.get("Env") or []:
            name, _, value = item.partition("=")
            if value.startswith("/"):
                value = _path_list(root, value)
                if not value:
                    continue
            env[name] = f"{value}{os.pathsep}{env['PATH']}" if name == "PATH" else value
        argv = [*(config.get("Entrypoint") or []), "serve"]  # `serve` takes the place of CMD
        if STANDS_FOR in (config.get("Labels") or {}):
            return [str(self._workshop.settings.container_python), str(_TEXT_SERVER)], root, env
        if Path(argv[0]).name in _PYTHON:
            argv[0] = str(self._workshop.settings.container_python)
        else:
            argv[0] = _into(root, argv[0])
        cwd = Path(_into(root, config.get("WorkingDir") or "/"))
        return argv, cwd if cwd.is_dir() else root, env


def _fitted_to_this_machine(variables: dict[str, str]) -> dict[str, str]:
    """The variables that say what an instance has, as far as this machine has it."""
    processors = os.cpu_count() or 1
    threads = {name: variables[name] for name in _THREADS if variables.get(name, "").isdecimal()}
    return {
        **dict.fromkeys((name for name in _GPU_LAYERS if name in variables), "0"),
        **{name: str(min(int(value), processors)) for name, value in threads.items()},
    }


def _path_list(root: Path, value: str) -> str:
    """Those of the paths that the image's layer holds; one of the base image would lead the process nowhere."""
    paths = (_into(root, part) for part in value.split(os.pathsep))
    return os.pathsep.join(path for path in paths if path.startswith(f"{root}/"))


def _into(root: Path, text: str) -> str:
    """An absolute path of the image as it lies under `root`; anything else as it is."""
    if not text.startswith("/"):
        return text
    inside = root / text.lstrip("/")
    return str(inside) if inside.exists() else text


def _ending(exit_code: int) -> str:
    return f"exit status {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
