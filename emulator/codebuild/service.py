"""Puts real builds behind MiniStack's CodeBuild API: StartBuild, StopBuild, and the project members that it drops."""
# ruff: noqa: SLF001 - MiniStack has no public names for what it keeps; its release is pinned

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from ministack.services import codebuild

from emulator.aws import AwsError, Params, answer, input_shape, validate
from emulator.codebuild.build import Build, Job, Record
from emulator.roles import RoleError
from emulator.settings import REGION

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.workshop import Workshop

_OVERRIDES = {"projectName", "environmentVariablesOverride", "timeoutInMinutesOverride", "idempotencyToken"}
_IN_PROGRESS = "IN_PROGRESS"


class CodeBuild:
    """The builds of this emulator."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._builds: dict[str, Build] = {}

    def install(self) -> None:
        """Take the place of MiniStack's builds, which succeed at once without doing anything."""
        codebuild._start_build = lambda params: answer(lambda: self.start(params))
        codebuild._stop_build = lambda params: answer(lambda: self.stop(params))
        codebuild._project_shape = _with_logs_config(codebuild._project_shape)

    def start(self, params: Params) -> Params:
        """StartBuild."""
        validate(params, input_shape("codebuild", "StartBuild"))
        if unsupported := sorted(params.keys() - _OVERRIDES):
            raise AwsError("InvalidInputException", f"the emulator does not support {', '.join(unsupported)}")
        name = params["projectName"]
        project = codebuild._projects.get(name)
        if project is None:
            raise AwsError("ResourceNotFoundException", f"Project cannot be found: {name}")
        source = project["source"]
        if source.get("type") not in {"NO_SOURCE", "S3"}:
            raise AwsError(
                "InvalidInputException", f"the emulator does not support the source type {source.get('type')}"
            )
        try:
            credentials = self._workshop.roles.assume(project["serviceRole"], "codebuild.amazonaws.com", "AWSCodeBuild")
        except RoleError as error:
            raise AwsError("InvalidInputException", str(error)) from error
        record = codebuild._make_build_record(project, codebuild._build_id(name))
        record |= {
            "logs": _logs(project, record["id"]),
            "serviceRole": project["serviceRole"],
            "startTime": time.time(),
        }
        build = Build(
            self._workshop,
            record,
            Job(
                source=source,
                variables=_variables(project, params),
                timeout_minutes=params.get("timeoutInMinutesOverride", project["timeoutInMinutes"]),
                credentials=credentials,
            ),
        )
        codebuild._builds[record["id"]] = record
        self._builds[record["id"]] = build
        build.start()
        return {"build": copy.deepcopy(record)}

    def stop(self, params: Params) -> Params:
        """StopBuild: the commands are ended; the build shows STOPPED once they have."""
        build = self._builds.get(params.get("id", ""))
        if build is None:
            raise AwsError("ResourceNotFoundException", f"Build cannot be found: {params.get('id')}")
        if build.record["buildStatus"] == _IN_PROGRESS:
            build.stop()
        return {"build": copy.deepcopy(build.record)}


def _variables(project: Record, params: Params) -> dict[str, str]:
    """The project's environment variables with the call's own over them."""
    variables = [
        *project["environment"].get("environmentVariables", []),
        *params.get("environmentVariablesOverride", []),
    ]
    for variable in variables:
        if variable.get("type", "PLAINTEXT") != "PLAINTEXT":
            raise AwsError(
                "InvalidInputException",
                f"the environment variable {variable['name']} is of type {variable['type']}: "
                "the emulator supports PLAINTEXT",
            )
    return {variable["name"]: variable["value"] for variable in variables}


def _logs(project: Record, build_id: str) -> Record:
    configured = (project.get("logsConfig") or {}).get("cloudWatchLogs") or {}
    group = configured.get("groupName") or f"/aws/codebuild/{project['name']}"
    stream = build_id.partition(":")[2]
    if configured.get("streamName"):
        stream = f"{configured['streamName']}/{stream}"
    escaped_group, escaped_stream = (quote(quote(part, safe=""), safe="") for part in (group, stream))
    address = f"https://console.aws.amazon.com/cloudwatch/home?region={REGION}#logsV2:log-groups/log-group/"
    return {
        "groupName": group,
        "streamName": stream,
        "deepLink": f"{address}{escaped_group}/log-events/{escaped_stream}",
        "cloudWatchLogs": {"status": "ENABLED", **configured},
    }


def _with_logs_config(shape: Callable[[Record], Record]) -> Callable[[Record], Record]:
    return lambda project: {**shape(project), "logsConfig": project.get("logsConfig", {})}
