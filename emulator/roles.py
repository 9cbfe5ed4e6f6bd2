"""Roles as AWS's services use them: assumed by the service that a role trusts, asked for what it may do.

Requests to the emulator's APIs are decided by MiniStack (`AUTH=true`). What a service does inside, without a request
(a function's log lines, a state machine's calls, the layers of an image), is decided here by the same evaluator.
Every decision on a role goes to the access log, as IAM's "last accessed" information tells it on AWS.
"""
# ruff: noqa: SLF001 - MiniStack has no public names for what it keeps; its release is pinned

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emulator.settings import ACCOUNT, REGION

if TYPE_CHECKING:
    from pathlib import Path

    from emulator.aws import Params


class RoleError(Exception):
    """A service may not assume a role; one sentence."""


@dataclass(frozen=True)
class Credentials:
    """What requests are signed with."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which AWS's tools find them."""
        token = {"AWS_SESSION_TOKEN": self.session_token} if self.session_token else {}
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key, **token}


ROOT = Credentials("test", "test")  # the account's owner, whom MiniStack knows by this name


class Roles:
    """The account's roles. Where IAM is not enforced, everything is done as the account's owner."""

    def __init__(self, *, enforced: bool, access_log: Path) -> None:
        self.enforced = enforced
        self._access_log = access_log
        self._lock = threading.Lock()

    def assume(self, role_arn: str, service: str, session: str) -> Credentials:
        """Credentials of a role for a service (`codebuild.amazonaws.com`) that acts with it.

        Raises RoleError unless the role exists and trusts the service. MiniStack's own AssumeRole takes any
        service for trusted, and is not used for that.
        """
        if not self.enforced:
            return ROOT
        name = role_arn.rpartition("/")[2]
        role = _role(name)
        if role is None or not _trusts(role, service):
            raise RoleError(
                f"{service} is not authorized to perform: sts:AssumeRole on {role_arn}: "
                "the role does not exist, or its trust policy does not name the service"
            )
        from ministack.services import sts  # noqa: PLC0415 - not before its environment is set

        credentials = Credentials(f"ASIA{secrets.token_hex(8).upper()}", secrets.token_hex(20), secrets.token_hex(40))
        sts.register_session(
            credentials.access_key_id,
            {
                "Arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/{session[:64]}",
                "UserId": f"{name}:{session[:64]}",
                "SecretAccessKey": credentials.secret_access_key,
                "SessionToken": credentials.session_token,
            },
        )
        return credentials

    def may(self, role_arn: str, action: str, resource: str) -> bool:
        """Whether a role's policies allow one action now."""
        if not self.enforced:
            return True
        from ministack.core.iam_evaluator import EvalContext, _gather_role_policies, evaluate  # noqa: PLC0415

        name = role_arn.rpartition("/")[2]
        context = EvalContext(
            principal_arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/service",
            principal_type="AssumedRole",
            principal_account=ACCOUNT,
            action=action,
            resource_arn=resource,
            region=REGION,
            secure_transport=True,
        )
        allowed = bool(evaluate(context, _gather_role_policies(name, ACCOUNT)).decision == "Allow")
        self.record(name, action, resource, allowed=allowed)
        return allowed

    def record(self, role: str, action: str, resource: str, *, allowed: bool) -> None:
        """Write one decision to the access log."""
        line = json.dumps({"role": role, "action": action, "resource": resource, "allowed": allowed})
        with self._lock, self._access_log.open("a") as log:
            log.write(line + "\n")


def _role(name: str) -> Params | None:
    from ministack.services import iam  # noqa: PLC0415

    found: Params | None = iam._roles.get_scoped(ACCOUNT, None, name)
    return found


def _trusts(role: Params, service: str) -> bool:
    """Whether a statement of the trust policy names the service, and its conditions hold for this account."""
    from ministack.core.iam_evaluator import (  # noqa: PLC0415
        EvalContext,
        _action_matches,
        _conditions_met,
        _service_principal_matches,
    )

    document: Any = role["AssumeRolePolicyDocument"]
    document = json.loads(document) if isinstance(document, str) else document
    context = EvalContext(
        principal_arn=service,
        principal_type="Service",
        principal_account=ACCOUNT,
        action="sts:AssumeRole",
        resource_arn=role["Arn"],
        region=REGION,
        service_context={"aws:sourceaccount": ACCOUNT},
    )
    statements = document["Statement"]
    for statement in statements if isinstance(statements, list) else [statements]:
        actions = statement.get("Action", [])
        if (
            statement["Effect"] == "Allow"
            and _action_matches("sts:AssumeRole", [actions] if isinstance(actions, str) else actions, [])
            and _service_principal_matches(statement.get("Principal"), service)
            and _conditions_met(statement.get("Condition", {}), context)
        ):
            return True
    return False
