"""How an endpoint's update moves the traffic, when it is undone, and the proof that it was not undone in silence."""

import json
from collections.abc import Sequence
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs, custom_resources
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.config import BlueGreen, Endpoint, Rolling, TextEndpoint
from stacks.logs import Logs

_CODE = Path(__file__).resolve().parent.parent / "lambda" / "rollout_check"
_CHECK_TIMEOUT = cdk.Duration.minutes(5)
_RESOURCE_TIMEOUT = cdk.Duration.minutes(7)

# An update whose alarms ring longer than this, or whose new fleet does not come up, is given up.
_UPDATE_TIMEOUT = cdk.Duration.hours(2)
# How long the old fleet lives on after the traffic has moved, for the requests that it has.
_TERMINATION_WAIT = cdk.Duration.minutes(2)

_CFN = sagemaker.CfnEndpoint
_TRAFFIC = {"all-at-once": "ALL_AT_ONCE", "canary": "CANARY", "linear": "LINEAR"}

_DECISION = {
    "decision": {
        "id": "deployed",
        "state": "Customer asks to reset a forgotten password and says the reset email never arrived.",
        "question": "Which queue should handle this request?",
        "options": [
            {"id": "account_access", "description": "Account access and authentication support."},
            {"id": "billing", "description": "Billing and payment support."},
        ],
    }
}
_CHAT = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 1}


def deployment_config(
    rollout: BlueGreen | Rolling | None, alarms: Sequence[cloudwatch.IAlarm]
) -> sagemaker.CfnEndpoint.DeploymentConfigProperty | None:
    """The endpoint's deployment guardrails; None where it has neither a way nor alarms of its own."""
    if rollout is None and not alarms:
        return None
    rollback = _CFN.AutoRollbackConfigProperty(
        alarms=[_CFN.AlarmProperty(alarm_name=alarm.alarm_name) for alarm in alarms]
    )
    if isinstance(rollout, Rolling):
        return _CFN.DeploymentConfigProperty(
            rolling_update_policy=_CFN.RollingUpdatePolicyProperty(
                maximum_batch_size=_share(rollout.step_percent),
                wait_interval_in_seconds=rollout.wait_seconds,
                maximum_execution_timeout_in_seconds=int(_UPDATE_TIMEOUT.to_seconds()),
            ),
            auto_rollback_configuration=rollback if alarms else None,
        )
    plan = rollout or BlueGreen()
    return _CFN.DeploymentConfigProperty(
        blue_green_update_policy=_CFN.BlueGreenUpdatePolicyProperty(
            traffic_routing_configuration=_CFN.TrafficRoutingConfigProperty(
                type=_TRAFFIC[plan.traffic],
                wait_interval_in_seconds=plan.wait_seconds,
                canary_size=_share(plan.step_percent) if plan.traffic == "canary" else None,
                linear_step_size=_share(plan.step_percent) if plan.traffic == "linear" else None,
            ),
            termination_wait_in_seconds=int(_TERMINATION_WAIT.to_seconds()),
            maximum_execution_timeout_in_seconds=int(_UPDATE_TIMEOUT.to_seconds()),
        ),
        auto_rollback_configuration=rollback if alarms else None,
    )


def _share(percent: int) -> sagemaker.CfnEndpoint.CapacitySizeProperty:
    return _CFN.CapacitySizeProperty(type="CAPACITY_PERCENT", value=percent)


class RolloutCheck(Construct):
    """Ends a deploy as failed where an endpoint does not serve what the deploy meant it to; one per stack.

    SageMaker may roll an update back and leave the endpoint in service: to CloudFormation that can look like success.
    """

    def __init__(self, scope: Construct, id_: str, *, logs: Logs) -> None:
        super().__init__(scope, id_)
        handler_logs = logs.group(self, "Logs")
        self._role = _role(self, "Role", handler_logs)
        framework_logs = logs.group(self, "FrameworkLogs")
        self._provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=lambda_.Function(
                self,
                "OnEvent",
                code=lambda_.Code.from_asset(
                    str(_CODE), exclude=["*", "!handler.py"], ignore_mode=cdk.IgnoreMode.DOCKER
                ),
                handler="handler.on_event",
                runtime=lambda_.Runtime.PYTHON_3_14,
                role=self._role.without_policy_updates(),
                log_group=handler_logs,
                logging_format=lambda_.LoggingFormat.JSON,
                memory_size=256,
                timeout=_CHECK_TIMEOUT,
            ),
            log_group=framework_logs,
            framework_on_event_role=_role(self, "FrameworkRole", framework_logs),
        )

    def check(
        self,
        scope: Construct,
        id_: str,
        *,
        config: Endpoint,
        endpoint: sagemaker.CfnEndpoint,
        endpoint_config_name: str,
        endpoint_arn: str,
    ) -> None:
        """Check the endpoint whenever its configuration has changed, with one real request where it answers at once."""
        self._role.add_to_policy(
            iam.PolicyStatement(
                actions=["sagemaker:DescribeEndpoint", "sagemaker:InvokeEndpoint"], resources=[endpoint_arn]
            )
        )
        request = _CHAT if isinstance(config, TextEndpoint) else _DECISION
        resource = cdk.CustomResource(
            scope,
            id_,
            resource_type="Custom::RolloutCheck",
            service_token=self._provider.service_token,
            service_timeout=_RESOURCE_TIMEOUT,
            properties={
                "EndpointName": endpoint.attr_endpoint_name,
                "EndpointConfigName": endpoint_config_name,
                # An asynchronous endpoint may have no instance, and takes its requests from S3.
                "Request": "" if config.asynchronous else json.dumps(request),
            },
        )
        resource.node.add_dependency(self._role)


def _role(scope: Construct, id_: str, logs: aws_logs.ILogGroup) -> iam.Role:
    role = iam.Role(scope, id_, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
    logs.grant_write(role)
    return role
