"""The custom resource that runs CodeBuild builds inside the deploy; `lambda/build_runner` is what it calls."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs, custom_resources
from constructs import Construct

from stacks.logs import Logs

_CODE = Path(__file__).resolve().parent.parent / "lambda" / "build_runner"

# A custom resource lives an hour at most: the build with its wait in the queue ends before the poll does, the
# poll before CloudFormation gives up, so that the one who knows the reason is the one who reports it.
# A new account may run one build at a time: CodeBuild then queues the environment's others.
BUILD_TIMEOUT = cdk.Duration.minutes(30)
QUEUE_TIMEOUT = cdk.Duration.minutes(23)
_POLL_TIMEOUT = cdk.Duration.minutes(55)
_RESOURCE_TIMEOUT = cdk.Duration.minutes(58)
_POLL_INTERVAL = cdk.Duration.seconds(5)


class BuildRunner(Construct):
    """Starts CodeBuild builds for custom resources and waits for them; one per stack."""

    def __init__(self, scope: Construct, id_: str, *, logs: Logs) -> None:
        super().__init__(scope, id_)
        code = lambda_.Code.from_asset(str(_CODE), exclude=["*", "!handler.py"], ignore_mode=cdk.IgnoreMode.DOCKER)
        handler_logs = logs.group(self, "Logs")
        # One role of our own for both: CDK's default would bring the managed policy that may make any log group.
        self._role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        handler_logs.grant_write(self._role)

        def function(name: str, handler: str, timeout: cdk.Duration) -> lambda_.Function:
            return lambda_.Function(
                self,
                name,
                code=code,
                handler=handler,
                runtime=lambda_.Runtime.PYTHON_3_14,
                role=self._role.without_policy_updates(),
                log_group=handler_logs,
                logging_format=lambda_.LoggingFormat.JSON,
                memory_size=256,
                timeout=timeout,
            )

        framework_logs = logs.group(self, "FrameworkLogs")

        def framework_role(name: str) -> iam.Role:
            role = iam.Role(self, name, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
            framework_logs.grant_write(role)
            return role

        self._provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=function("OnEvent", "handler.on_event", cdk.Duration.minutes(2)),
            is_complete_handler=function("IsComplete", "handler.is_complete", cdk.Duration.minutes(1)),
            query_interval=_POLL_INTERVAL,
            total_timeout=_POLL_TIMEOUT,
            log_group=framework_logs,
            framework_on_event_role=framework_role("FrameworkOnEventRole"),
            framework_complete_and_timeout_role=framework_role("FrameworkIsCompleteRole"),
            # The framework's functions log every poll already; the state machine's own log would need the right
            # to change the log deliveries of the whole account.
            disable_waiter_state_machine_logging=True,
        )

    def run(
        self,
        scope: Construct,
        id_: str,
        *,
        project: codebuild.Project,
        log_group: aws_logs.ILogGroup,
        content_hash: str,
    ) -> cdk.CustomResource:
        """A resource that runs the project's build when it is made and whenever the hash changes.

        Its attributes are the variables that the buildspec exports.
        """
        # A policy for each project: in one for all, a build could not wait for another's result.
        policy = iam.Policy(
            scope,
            f"{id_}Policy",
            roles=[self._role],
            statements=[
                iam.PolicyStatement(
                    actions=[
                        "codebuild:StartBuild",
                        "codebuild:StopBuild",
                        "codebuild:BatchGetBuilds",
                        "codebuild:ListBuildsForProject",
                    ],
                    resources=[project.project_arn],
                ),
                iam.PolicyStatement(actions=["logs:GetLogEvents"], resources=[log_group.log_group_arn]),
            ],
        )
        resource = cdk.CustomResource(
            scope,
            id_,
            resource_type="Custom::Build",
            service_token=self._provider.service_token,
            service_timeout=_RESOURCE_TIMEOUT,
            properties={"ProjectName": project.project_name, "ContentHash": content_hash},
        )
        resource.node.add_dependency(project, log_group, policy, self._role)
        return resource
