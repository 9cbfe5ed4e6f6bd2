"""Out of hundreds of lines of the CDK command line, the one that says why."""

from __future__ import annotations

import pytest

from tools.cdk import _reason

# Printed by aws-cdk 2.1148.1 when a custom resource failed; shortened.
FAILED_DEPLOY = """
decision-endpoints-local-endpoints: creating CloudFormation changeset...
decision-endpoints-local-endpoints |  3/30 | 12:36:05 PM | CREATE_COMPLETE      | AWS::IAM::Role | Role (Role1ABCC5F0)
decision-endpoints-local-endpoints |  4/30 | 12:36:09 PM | CREATE_FAILED        | AWS::CloudFormation::CustomResource | ModelBuild/Run/Default (ModelBuildRun) Received response status [FAILED] from custom resource. Message returned: checksum differs
decision-endpoints-local-endpoints |  5/30 | 12:36:10 PM | ROLLBACK_IN_PROGRESS | AWS::CloudFormation::Stack | decision-endpoints-local-endpoints
failed: decision-endpoints-local-endpoints: The stack named decision-endpoints-local-endpoints failed creation
"""  # noqa: E501


def test_the_first_failed_resource_is_the_reason() -> None:
    reason = _reason(FAILED_DEPLOY.splitlines())
    assert reason is not None
    assert reason.startswith("AWS::CloudFormation::CustomResource ModelBuild/Run/Default (ModelBuildRun)")
    assert reason.endswith("Message returned: checksum differs")


def test_the_apps_own_complaint_comes_before_the_command_lines() -> None:
    lines = ["error: there is no environment 'x'", "python3 app.py: Subprocess exited with error 1"]
    assert _reason(lines) == "there is no environment 'x'"


@pytest.mark.parametrize(("lines", "reason"), [(["first", "no credentials have been configured", ""], 1), ([], None)])
def test_else_the_command_line_has_the_last_word(lines: list[str], reason: int | None) -> None:
    assert _reason(lines) == (None if reason is None else lines[reason])
