"""Who may do what: what MiniStack's enforcement of IAM (`AUTH=true`) lacks, and the record of what roles have used.

Enforced are all requests to the emulator's APIs and its registry, by identity and resource policies, permissions
boundaries and conditions; the deliveries of log lines; an endpoint's look at its roll-back alarms; and the trust of a
role in the service that assumes it. That covers the command line's bootstrap roles, Lambda functions, builds,
endpoints and callers.

Not enforced, because MiniStack does these things inside, without a request: what CloudFormation itself makes with its
execution role (CDK's is an administrator); iam:PassRole; the calls of a state machine (CDK's own waiter); the use of
KMS keys by other services; and cloudwatch:PutMetricData of an endpoint, since SageMaker's own metrics are not
published.
"""
# ruff: noqa: SLF001 - MiniStack has no public names for what it keeps; its release is pinned

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ministack.core import iam_actions, iam_evaluator
from ministack.core.responses import json_response
from ministack.services import ecr, sts

from emulator.settings import ACCOUNT, REGION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from emulator.aws import Response
    from emulator.roles import Roles

_ENDPOINT_PATH = re.compile(r"/endpoints/(?P<name>[^/]+)/(?:async-)?invocations(?:-response-stream)?")
_ASSUMED_ROLE = re.compile(r"arn:aws:sts::\d{12}:assumed-role/(?P<role>[^/]+)/.*")
_REGISTRY_HOST = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
# What ECR asks a registry's caller for, by MiniStack's name of the request and its method.
_REGISTRY_ACTIONS = {
    ("manifest", "GET"): ("ecr:BatchGetImage",),
    ("manifest", "HEAD"): ("ecr:BatchGetImage",),
    ("manifest", "PUT"): ("ecr:PutImage",),
    ("blob", "GET"): ("ecr:GetDownloadUrlForLayer",),
    ("blob", "HEAD"): ("ecr:BatchCheckLayerAvailability",),
    ("blob_uploads", "POST"): ("ecr:InitiateLayerUpload", "ecr:UploadLayerPart", "ecr:CompleteLayerUpload"),
}
_TOKEN_SECONDS = 12 * 3600


def name_resources() -> None:
    """Teach MiniStack the actions and resources of the services that it lacks or names wrongly."""
    for service in ("sagemaker", "application-autoscaling"):
        iam_actions.SERVICE_TO_IAM_NAMESPACE[service] = service
    iam_actions._BOTOCORE_SERVICE_MAP["sagemaker"] = ["sagemaker-runtime"]
    resource_of = iam_actions.extract_resource_arn

    def resource(  # noqa: PLR0917 - MiniStack's own signature
        service: str,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        query: dict[str, Any],
        region: str,
        account: str,
    ) -> str:
        own = _resource(service, path, headers, body)
        return own or str(resource_of(service, method, path, headers, body, query, region, account))

    iam_actions.extract_resource_arn = resource


def record_decisions(roles: Roles) -> None:
    """Have every decision on a role's request in the access log."""
    enforce = iam_evaluator.enforce

    def recorded(access_key: str, action: str, service: str, region: str, **more: Any) -> Any:
        denial = enforce(access_key, action, service, region, **more)
        session = sts._sessions.get(access_key) or {}
        if match := _ASSUMED_ROLE.fullmatch(session.get("Arn", "")):
            roles.record(match["role"], action, more.get("resource_arn", "*"), allowed=denial is None)
        return denial

    iam_evaluator.enforce = recorded


class RegistryGate:
    """The registry asks for a token of GetAuthorizationToken, and does what the token's owner may do."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._owners: dict[str, str] = {}  # token: ARN of who asked for it

    def install(self) -> None:
        """Take the place of MiniStack's registry, which lets everybody in."""
        ecr._get_authorization_token = self._issue
        handle = ecr.handle_registry_request

        async def guarded(
            method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
        ) -> Response:
            denied = self._denied(method.upper(), path, {name.lower(): value for name, value in headers.items()})
            response: Response = denied or await handle(method, path, headers, body, query)
            return response

        ecr.handle_registry_request = guarded

    def _issue(self, _data: dict[str, Any]) -> Response:
        token = secrets.token_urlsafe(32)
        self._owners[token] = iam_evaluator.caller_arn()
        answer = {
            "authorizationToken": base64.b64encode(f"AWS:{token}".encode()).decode(),
            "expiresAt": int(time.time()) + _TOKEN_SECONDS,
            "proxyEndpoint": f"https://{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com",
        }
        response: Response = json_response({"authorizationData": [answer]})
        return response

    def _denied(self, method: str, path: str, headers: Mapping[str, str]) -> Response | None:
        owner = self._owners.get(_password(headers.get("authorization", "")))
        if owner is None:
            return _refusal(401, "UNAUTHORIZED", "no basic auth credentials")
        assumed, parsed = _ASSUMED_ROLE.fullmatch(owner), ecr._parse_v2_path(path)
        if assumed is None or parsed is None:
            return None
        verb, name, _ = parsed
        host = _REGISTRY_HOST.match(headers.get("host", ""))
        account, region = (host["account"], host["region"]) if host else (ACCOUNT, REGION)
        repository = f"arn:aws:ecr:{region}:{account}:repository/{name}"
        for action in _REGISTRY_ACTIONS.get((verb, method), ()):
            if not self._roles.may(assumed["role"], action, repository):
                message = f"User: {owner} is not authorized to perform: {action} on resource: {repository}"
                return _refusal(403, "DENIED", message)
        return None


def _refusal(status: int, code: str, message: str) -> Response:
    response: Response = ecr._registry_error(status, code, message)
    return response


def _password(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value).decode().partition(":")[2]
    except ValueError:
        return ""


def _resource(service: str, path: str, headers: Mapping[str, str], body: bytes) -> str | None:
    """The resource of a request whose ARN MiniStack does not make as AWS does; None leaves it to MiniStack."""
    try:
        members: Any = json.loads(body) if body.startswith(b"{") else {}
    except ValueError:
        members = {}
    if service == "sagemaker":
        return _sagemaker_resource(path, headers, members)
    if service == "codebuild":
        # A build's id begins with its project's name. AWS decides per build; here the first decides for all.
        build = next(iter(members.get("ids") or []), members.get("id"))
        return f"arn:aws:codebuild:{REGION}:{ACCOUNT}:project/{build.partition(':')[0]}" if build else None
    if service == "ecr" and "registryId" in members:
        return f"arn:aws:ecr:{REGION}:{members['registryId']}:repository/{members.get('repositoryName', '*')}"
    if service == "logs" and "logGroupName" in members:
        group = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{members['logGroupName']}"
        return f"{group}:log-stream:{members.get('logStreamName', '')}"
    return None


def _sagemaker_resource(path: str, headers: Mapping[str, str], members: Mapping[str, Any]) -> str:
    if match := _ENDPOINT_PATH.fullmatch(path):
        return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint/{unquote(match['name']).lower()}"
    if "ResourceArn" in members:
        return str(members["ResourceArn"])
    operation = headers.get("x-amz-target", "").rpartition(".")[2]
    for noun, kind in (("EndpointConfig", "endpoint-config"), ("Endpoint", "endpoint"), ("Model", "model")):
        if noun in operation and f"{noun}Name" in members:
            return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}/{members[f'{noun}Name'].lower()}"
    return "*"
