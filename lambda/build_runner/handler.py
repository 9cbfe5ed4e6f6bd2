"""Custom resource that runs a CodeBuild build during a deploy: starts it, waits for it, says why it failed.

Behind the provider framework of the CDK: `on_event` starts or stops, `is_complete` is asked until it says yes.
Resource properties: `ProjectName`, and `ContentHash`, whose change means a new build. The attributes of the
resource are the variables that the buildspec exports.
"""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import boto3
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from mypy_boto3_codebuild import CodeBuildClient
    from mypy_boto3_codebuild.type_defs import BuildTypeDef
    from mypy_boto3_logs import CloudWatchLogsClient

Event = dict[str, Any]

# CloudFormation takes 4,096 bytes of answer; the framework adds its own lines to our message.
_MESSAGE_BYTES = 2000
_LOG_LINES = 50
# IAM is eventually consistent: for some seconds CodeBuild may not be able to assume a role that was just made.
_START_ATTEMPTS = 10
_START_PAUSE_SECONDS = 6.0
_NOT_YET_ASSUMABLE = "not authorized to perform: sts:AssumeRole"

# The function's log format is JSON: Lambda itself writes a record and its extra fields as one object.
logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)


class BuildFailedError(Exception):
    """A build that ended in any other way than success; its text is what the reader of the deploy sees."""


def on_event(event: Event, _context: object) -> Event:
    """Start the build on Create and Update, stop running ones on Delete; what is returned reaches `is_complete`."""
    project = event["ResourceProperties"]["ProjectName"]
    codebuild = boto3.client("codebuild")
    if event["RequestType"] == "Delete":
        return {"PhysicalResourceId": event["PhysicalResourceId"], "BuildIds": stop_builds(codebuild, project)}
    # The project's name as the resource's: a new project is a new resource, so the old one's builds are stopped.
    return {"PhysicalResourceId": project, "BuildIds": [start_build(codebuild, project, event["RequestId"])]}


def is_complete(event: Event, _context: object) -> Event:
    """Whether the builds that `on_event` named have ended.

    Raises BuildFailedError for a build that did not succeed, at once and whatever the reason.
    """
    builds = get_builds(boto3.client("codebuild"), event["BuildIds"])
    running = [build["id"] for build in builds if build["buildStatus"] == "IN_PROGRESS"]
    logger.info("polled", extra={"statuses": {build["id"]: build["buildStatus"] for build in builds}})
    if running:
        return {"IsComplete": False}
    if event["RequestType"] == "Delete":
        return {"IsComplete": True}
    (build,) = builds
    if build["buildStatus"] != "SUCCEEDED":
        raise BuildFailedError(failure_message(build, last_log_lines(boto3.client("logs"), build)))
    return {"IsComplete": True, "Data": exported_variables(build)}


def start_build(codebuild: "CodeBuildClient", project: str, request_id: str) -> str:
    """Start one build and return its id; the same request starts the same build only once."""
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            # The token lives 5 minutes, the request id is CloudFormation's own: a repeated call is no second build.
            build = codebuild.start_build(projectName=project, idempotencyToken=request_id)["build"]
        except ClientError as error:
            if attempt == _START_ATTEMPTS or _NOT_YET_ASSUMABLE not in str(error):
                raise
            logger.warning("role not yet assumable, trying again", extra={"project": project, "attempt": attempt})
            time.sleep(_START_PAUSE_SECONDS)
        else:
            logger.info("started", extra={"build": build["id"]})
            return build["id"]
    raise AssertionError("unreachable: the last attempt returns or raises")


def stop_builds(codebuild: "CodeBuildClient", project: str) -> list[str]:
    """Stop every running build of the project and return their ids; a project that is gone has none.

    Of the project, not of one build: the id of a build whose resource never came to be is known to nobody.
    """
    try:
        # The newest first; at most one runs per resource, so one page of 100 is enough.
        ids = codebuild.list_builds_for_project(projectName=project, sortOrder="DESCENDING")["ids"]
    except codebuild.exceptions.ResourceNotFoundException:
        logger.info("project is gone", extra={"project": project})
        return []
    running = [build["id"] for build in get_builds(codebuild, ids) if build["buildStatus"] == "IN_PROGRESS"]
    for build_id in running:
        codebuild.stop_build(id=build_id)
        logger.info("stopped", extra={"build": build_id})
    return running


def get_builds(codebuild: "CodeBuildClient", ids: Sequence[str]) -> "list[BuildTypeDef]":
    """The builds with these ids, 100 at most."""
    return codebuild.batch_get_builds(ids=list(ids))["builds"] if ids else []


def last_log_lines(logs: "CloudWatchLogsClient", build: "BuildTypeDef") -> list[str]:
    """The end of the build's log; empty where the build ended before it wrote one."""
    where = build.get("logs", {})
    if not where.get("groupName") or not where.get("streamName"):
        return []
    try:
        events = logs.get_log_events(
            logGroupName=where["groupName"], logStreamName=where["streamName"], limit=_LOG_LINES, startFromHead=False
        )["events"]
    except ClientError as error:
        # The build's failure is what matters: an unreadable log is told in its place.
        return [f"(its log cannot be read: {error})"]
    return [event["message"].rstrip() for event in events]


def exported_variables(build: "BuildTypeDef") -> dict[str, str]:
    """The variables that the buildspec exports, as the resource's attributes."""
    return {variable["name"]: variable["value"] for variable in build.get("exportedEnvironmentVariables", [])}


def failure_message(build: "BuildTypeDef", log_lines: Sequence[str]) -> str:
    """Why the build failed, where its log is, and as much of the log's end as fits into CloudFormation's answer."""
    # CodeBuild's own lines tell of phases; what the build printed tells of the failure.
    own_lines = [line for line in log_lines if not line.startswith("[Container]")]
    head = f"{_reason(build, own_lines)} (build {build['id']} ended as {build['buildStatus']})"
    lines = [head, f"Log: {_log_address(build)}", "Its last lines:"]
    room = _MESSAGE_BYTES - len("\n".join(lines).encode())
    tail: list[str] = []
    for line in reversed(own_lines or log_lines):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        tail.insert(0, line)
    return "\n".join([*lines, *(tail or ["(none)"])])


def _reason(build: "BuildTypeDef", own_lines: Sequence[str]) -> str:
    """The last line that calls itself an error, or what CodeBuild says of the phases."""
    errors = [line for line in own_lines if line.lower().startswith("error:")]
    phases = [
        f"{phase['phaseType']}: {context['message']}"
        for phase in build.get("phases", [])
        for context in phase.get("contexts", [])
        if context.get("message")
    ]
    return (errors[-1] if errors else "; ".join(phases) or "No reason given")[: _MESSAGE_BYTES // 4]


def _log_address(build: "BuildTypeDef") -> str:
    """The console's page of the build's log, made from its ARN where CodeBuild gives no deep link."""
    link = build.get("logs", {}).get("deepLink")
    if link:
        return link
    _, _, _, region, account, _ = build["arn"].split(":", 5)
    project, build_id = build["projectName"], quote(build["id"], safe="")
    return (
        f"https://{region}.console.aws.amazon.com/codesuite/codebuild/{account}/projects/{project}/build/{build_id}/log"
    )
