"""One build: its source, its environment, its phases in order, and the record that BatchGetBuilds shows."""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
import time
import uuid
import zipfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from emulator.codebuild.buildspec import PHASES, Buildspec, BuildspecError, Phase, parse
from emulator.codebuild.shell import DeadlineError, Shell, StoppedError
from emulator.logs import LogFollower
from emulator.settings import REGION

if TYPE_CHECKING:
    from emulator.roles import Credentials
    from emulator.workshop import Workshop

Record = dict[str, Any]
SHIMS = Path(__file__).resolve().parent.parent / "bin"
# Of the emulator's own environment, what makes downloads work here; nothing else reaches a build.
_INHERITED = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_INHERITED_PREFIXES = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


class BuildError(Exception):
    """A phase failed; carries CodeBuild's status code and message."""

    def __init__(self, status_code: str, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code


@dataclass(frozen=True)
class Job:
    """What StartBuild resolved a project and its overrides to."""

    source: Record
    variables: dict[str, str]
    timeout_minutes: float
    credentials: Credentials


class Build:
    """Runs one build on a thread of its own and keeps its record up to date.

    Source, log and commands have the credentials of the project's service role, and no others.
    """

    def __init__(self, workshop: Workshop, record: Record, job: Job) -> None:
        self.record = record
        self._workshop = workshop
        self._job = job
        self._clients = workshop.clients(job.credentials)
        self._stop = threading.Event()
        self._deadline = time.monotonic() + job.timeout_minutes * 60
        self._dir = workshop.settings.state_dir / "builds" / uuid.uuid4().hex
        self._log = self._dir.with_suffix(".log")

    def start(self) -> None:
        """Return at once; the record tells the rest."""
        self.record |= {"buildStatus": "IN_PROGRESS", "currentPhase": "SUBMITTED", "phases": [], "buildComplete": False}
        self.record.pop("endTime", None)
        threading.Thread(target=self._run, name=f"build {self.record['id']}", daemon=True).start()

    def stop(self) -> None:
        """End the running command; the record shows STOPPED when it has."""
        self._stop.set()

    def _run(self) -> None:
        self._dir.mkdir(parents=True)
        logs = self.record["logs"]
        follower = LogFollower(self._clients, self._log, logs["groupName"], logs["streamName"])
        status = "FAULT"
        try:
            status = self._phases(follower.refusal())
        except Exception as error:  # noqa: BLE001 - a fault of the emulator must not leave a build in progress
            self._say(f"fault of the emulator: {error!r}")
        finally:
            follower.stop()  # whoever sees the build complete finds its whole log
            shutil.rmtree(self._dir, ignore_errors=True)
            self.record["phases"] = [*self.record["phases"], {"phaseType": "COMPLETED", "startTime": time.time()}]
            self.record["currentPhase"] = "COMPLETED"
            self.record |= {"buildStatus": status, "endTime": time.time(), "buildComplete": True}

    def _phases(self, log_refusal: str | None) -> str:
        """The build's status. As CodeBuild does, POST_BUILD follows a BUILD that failed, and nothing else does."""
        now = time.time()
        if log_refusal:
            message = (
                f"Service role {self.record['serviceRole']} does not allow AWS CodeBuild to create Amazon CloudWatch "
                f"Logs log streams for build {self.record['arn']}. Error message: {log_refusal}"
            )
            self._complete_phase("SUBMITTED", "FAILED", now, {"statusCode": "ACCESS_DENIED", "message": message})
            return "FAILED"
        for name in ("SUBMITTED", "QUEUED", "PROVISIONING"):
            self._complete_phase(name, "SUCCEEDED", now)
        shell = None
        try:
            buildspec = self._in_phase("DOWNLOAD_SOURCE", self._prepare)
            shell = self._shell(buildspec)
            status = self._buildspec_phases(buildspec, shell)
            self._complete_phase("UPLOAD_ARTIFACTS", "SUCCEEDED", time.time())
            environment = shell.environment()
            self.record["exportedEnvironmentVariables"] = [
                {"name": name, "value": environment.get(name, "")} for name in buildspec.exported
            ]
        except StoppedError:
            status = "STOPPED"
        except DeadlineError:
            status = "TIMED_OUT"
        except BuildError:
            status = "FAILED"
        finally:
            if shell:
                shell.close()
            self._complete_phase("FINALIZING", "SUCCEEDED", time.time())
        return status

    def _buildspec_phases(self, buildspec: Buildspec, shell: Shell) -> str:
        status = "SUCCEEDED"
        for name in PHASES:
            phase = buildspec.phases.get(name, Phase([], [], continue_on_failure=False))
            try:
                self._in_phase(name.upper(), lambda phase=phase: self._commands(phase, shell))
            except BuildError:
                status = "FAILED"
                if not phase.continue_on_failure:
                    break
                self._run_command(shell, "export CODEBUILD_BUILD_SUCCEEDING=0")
        return status

    def _in_phase(self, name: str, work: Any) -> Any:
        """Run one phase's work and record it; the exceptions that end it are recorded and passed on."""
        started = time.time()
        self.record["currentPhase"] = name
        self._say(f"Entering phase {name}")
        status, context = "SUCCEEDED", {"statusCode": "", "message": ""}
        try:
            return work()
        except BuildError as error:
            status, context = "FAILED", {"statusCode": error.status_code, "message": str(error)}
            raise
        except DeadlineError:
            minutes = f"{self._job.timeout_minutes:g} minutes"
            status = "TIMED_OUT"
            context = {"statusCode": "BUILD_TIMED_OUT", "message": f"Build has timed out after {minutes}."}
            raise
        except StoppedError:
            status = "STOPPED"
            raise
        finally:
            self._complete_phase(name, status, started, context)
            self._say(f"Phase complete: {name} State: {status}")
            self._say(f"Phase context status code: {context['statusCode']} Message: {context['message']}")

    def _commands(self, phase: Phase, shell: Shell) -> None:
        try:
            self._run_all(phase.commands, shell)
        finally:
            self._run_all(phase.finally_commands, shell)

    def _run_all(self, commands: list[str], shell: Shell) -> None:
        for command in commands:
            self._say(f"Running command {command}")
            exit_status = self._run_command(shell, command)
            if exit_status:
                self._say(f"Command did not exit successfully {command} exit status {exit_status}")
                raise BuildError(
                    "COMMAND_EXECUTION_ERROR",
                    f"Error while executing command: {command}. Reason: exit status {exit_status}",
                )

    def _run_command(self, shell: Shell, command: str) -> int:
        return shell.run(command, deadline=self._deadline, stop=self._stop)

    def _prepare(self) -> Buildspec:
        """Fetch the source, read the buildspec."""
        source, target = self._job.source, self._dir / "src"
        for folder in (target, self._dir / "home", self._dir / "scratch", self._dir / "tmp"):
            folder.mkdir()
        try:
            if source["type"] == "S3":
                self._download(source["location"], target)
            text = self._buildspec_text(source.get("buildspec") or "buildspec.yml", target)
            return parse(text)
        except (BotoCoreError, ClientError, zipfile.BadZipFile) as error:
            raise BuildError("CLIENT_ERROR", f"the source {source['location']} cannot be read: {error}") from error
        except BuildspecError as error:
            raise BuildError("YAML_FILE_ERROR", str(error)) from error

    def _download(self, location: str, target: Path) -> None:
        bucket, _, key = location.removeprefix("arn:aws:s3:::").partition("/")
        s3 = self._clients.s3
        # What CodeBuild's documentation has a service role allow for a source in S3.
        s3.get_bucket_location(Bucket=bucket)
        s3.get_bucket_acl(Bucket=bucket)
        if not key.endswith("/"):
            version = s3.head_object(Bucket=bucket, Key=key).get("VersionId")
            pinned = {"VersionId": version} if version else {}
            content = s3.get_object(Bucket=bucket, Key=key, **pinned)["Body"].read()  # type: ignore[arg-type]
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for member in archive.infolist():
                    path = Path(archive.extract(member, target))
                    mode = member.external_attr >> 16
                    if mode and not member.is_dir():  # ZipFile.extract drops the executable bit
                        path.chmod(mode & 0o777)
            return
        for found in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key):
            for item in found.get("Contents", []):
                path = target / item["Key"].removeprefix(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                s3.download_file(bucket, item["Key"], str(path))

    def _buildspec_text(self, buildspec: str, target: Path) -> str:
        """A project holds the buildspec itself, its path in the source, or the ARN of an object."""
        if "\n" in buildspec or buildspec.lstrip().startswith("{"):
            return buildspec
        if buildspec.startswith("arn:aws:s3:::"):
            bucket, _, key = buildspec.removeprefix("arn:aws:s3:::").partition("/")
            return self._clients.s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode()
        try:
            return (target / buildspec).read_text()
        except OSError as error:
            raise BuildError("YAML_FILE_ERROR", f"the source has no buildspec {buildspec}: {error}") from error

    def _shell(self, buildspec: Buildspec) -> Shell:
        env = {**self._base_environment(), **buildspec.variables, **self._job.variables}
        return Shell(
            self._workshop.processes,
            buildspec.shell,
            env=env,
            cwd=self._dir / "src",
            scratch=self._dir / "scratch",
            log=self._log,
        )

    def _base_environment(self) -> dict[str, str]:
        outer = os.environ
        env = {
            name: value for name, value in outer.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
        }
        env |= _pip_settings(outer.get("HOME"))
        record = self.record
        return env | {
            "PATH": os.pathsep.join([str(SHIMS), *_path_without_virtualenvs()]),
            "HOME": str(self._dir / "home"),
            "TMPDIR": str(self._dir / "tmp"),
            "EMULATOR_PYTHON": sys.executable,  # the shims run on it
            **self._workshop.aws_environment(self._job.credentials),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "CODEBUILD_BUILD_ID": record["id"],
            "CODEBUILD_BUILD_ARN": record["arn"],
            "CODEBUILD_BUILD_NUMBER": str(record["buildNumber"]),
            "CODEBUILD_BUILD_IMAGE": record["environment"].get("image", ""),
            "CODEBUILD_BUILD_SUCCEEDING": "1",
            "CODEBUILD_CI": "true",
            "CODEBUILD_INITIATOR": record["initiator"],
            "CODEBUILD_KMS_KEY_ID": record["encryptionKey"],
            "CODEBUILD_LOG_PATH": record["logs"]["streamName"],
            "CODEBUILD_RESOLVED_SOURCE_VERSION": record.get("sourceVersion", ""),
            "CODEBUILD_SOURCE_REPO_URL": self._job.source.get("location", ""),
            "CODEBUILD_SRC_DIR": str(self._dir / "src"),
            "CODEBUILD_START_TIME": str(int(record["startTime"] * 1000)),
        }

    def _complete_phase(self, name: str, status: str, started: float, context: Record | None = None) -> None:
        ended = time.time()
        phase: Record = {"phaseType": name, "phaseStatus": status, "startTime": started, "endTime": ended}
        phase["durationInSeconds"] = int(ended - started)
        if context:
            phase["contexts"] = [context]
        self.record["phases"] = [*self.record["phases"], phase]
        self.record["currentPhase"] = name

    def _say(self, text: str) -> None:
        """A line of the log in CodeBuild's form."""
        at = datetime.now(timezone.utc).strftime("%Y/%m/%d %H:%M:%S.%f")
        with self._log.open("a") as log:
            log.write(f"[Container] {at} {text}\n")


def _pip_settings(home: str | None) -> dict[str, str]:
    """What pip would find under the machine's HOME, named, since a build has a HOME of its own."""
    if not home:
        return {}
    settings = {"PIP_CACHE_DIR": str(Path(os.environ.get("XDG_CACHE_HOME", f"{home}/.cache")) / "pip")}
    config_home = Path(os.environ.get("XDG_CONFIG_HOME", f"{home}/.config"))
    for config in (config_home / "pip" / "pip.conf", Path(home) / ".pip" / "pip.conf"):
        if config.exists():
            settings["PIP_CONFIG_FILE"] = str(config)
            break
    return {name: value for name, value in settings.items() if name not in os.environ}


def _path_without_virtualenvs() -> list[str]:
    """A build's `python3` is the machine's, whatever environment the emulator was started from."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [folder for folder in folders if folder and not (Path(folder).parent / "pyvenv.cfg").exists()]
