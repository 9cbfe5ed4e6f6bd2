"""The alarms of an endpoint, and the topic that carries them to people."""

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct, IDependable

from stacks.metrics import MICROSECONDS, EndpointMetrics
from stacks.thresholds import Thresholds

_COMPARE = cloudwatch.ComparisonOperator
# Measured only where there are requests: without any, nothing is slow, wrong or refused.
_WITH_REQUESTS = cloudwatch.TreatMissingData.NOT_BREACHING
# Reported by everything that lives, with requests or without: silence is the fault.
_ALWAYS = cloudwatch.TreatMissingData.BREACHING

_MINUTE = cdk.Duration.minutes(1)
_FIVE_MINUTES = cdk.Duration.minutes(5)
# The share of its memory that a GPU has in use when a model lies on it is more than this; when nothing does, it is 0.
_IDLE_GPU_MEMORY_PERCENT = 1


class AlarmTopic(Construct):
    """Where every alarm of an environment goes: an encrypted topic that only CloudWatch's alarms publish to.

    Teams subscribe what they use (chat, pager); `email` subscribes one address, which has to confirm. Without a `key`
    the topic gets one of its own: AWS's key for SNS does not let CloudWatch encrypt, and alarms would be lost unsaid.
    """

    def __init__(self, scope: Construct, id_: str, *, email: str | None, key: kms.IKey | None = None) -> None:
        super().__init__(scope, id_)
        key = key or kms.Key(
            self,
            "Key",
            description="Encrypts what the alarms of the decision endpoints say",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(7),
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        self.topic = sns.Topic(self, "Topic", master_key=key, enforce_ssl=True)
        alarms = iam.ServicePrincipal(
            "cloudwatch.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": cdk.Aws.ACCOUNT_ID}}
        )
        key.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[alarms],
                actions=["kms:Decrypt", "kms:GenerateDataKey"],
                resources=["*"],  # in a key's policy: this key
            )
        )
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(principals=[alarms], actions=["sns:Publish"], resources=[self.topic.topic_arn])
        )
        if email is not None:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))


class EndpointAlarms(Construct):
    """The alarms of one endpoint. They know it by its name, so that it can wait for them and be rolled back by them.

    `rollback` are those that end a deployment: they judge what is served, within minutes. The others do not: too many
    requests, or a lost instance, are no reason to go back to the version before.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        metrics: EndpointMetrics,
        thresholds: Thresholds,
        decides: bool,
        has_gpu: bool,
        min_instances: int,
        topic: sns.ITopic,
    ) -> None:
        """`decides`: whether the adapter serves, which has metrics of its own; else it is a text endpoint.

        An endpoint that scales to zero has no `min_instances` that would have to be alive.
        """
        super().__init__(scope, id_)
        self._metrics = metrics
        self._name = metrics.endpoint_name
        self._action = actions.SnsAction(topic)
        self.rollback = [self._faults(thresholds, decides=decides), self._latency(thresholds)]
        self._others: list[cloudwatch.Alarm] = []
        self._alive: list[cloudwatch.Alarm] = []
        if decides:
            self.rollback.append(self._option_mass(thresholds))
            self._others.append(self._busy(thresholds))
            if has_gpu:
                self.rollback.append(self._layers_on_cpu())
        if min_instances > 0:
            self._alive.append(self._instances_are_missing(min_instances))
            if decides:
                self._alive.append(self._adapter_is_silent())
            elif has_gpu:
                self._alive.append(self._gpu_memory_is_idle())

    @property
    def all(self) -> Sequence[cloudwatch.Alarm]:
        """Every alarm of the endpoint."""
        return [*self.rollback, *self._others, *self._alive]

    def wait_for(self, endpoint: IDependable) -> None:
        """Make the alarms that ring at silence only when the endpoint is there to speak."""
        for alarm in self._alive:
            alarm.node.add_dependency(endpoint)

    def grant_describe(self, role: iam.IRole) -> None:
        """What SageMaker needs, with the endpoint's own role, to read the state of the rollback alarms."""
        role.add_to_principal_policy(
            iam.PolicyStatement(
                actions=["cloudwatch:DescribeAlarms"], resources=[alarm.alarm_arn for alarm in self.rollback]
            )
        )

    def _faults(self, thresholds: Thresholds, *, decides: bool) -> cloudwatch.Alarm:
        """Requests without a good answer, for which neither the caller nor the load is to blame.

        `Invocation5XXErrors` cannot say that: a busy adapter's 503 counts there too. So the adapter's 5xx come from the
        adapter, which tells them from 503, and SageMaker adds what nobody answered: it counts every call that did not
        end in 2xx as a model error, time-outs and broken connections included.
        """
        sagemaker = {
            "invocations": self._metrics.invocation("Invocations", "Sum"),
            "failed": self._metrics.invocation("InvocationModelErrors", "Sum"),
            "refused": self._metrics.invocation("Invocation4XXErrors", "Sum"),
        }
        if decides:
            using = {
                **sagemaker,
                "answered": self._metrics.invocation("Invocation5XXErrors", "Sum"),
                "faults": self._metrics.adapter("Errors", "Sum"),
            }
            unanswered = "failed - refused - answered"
            # A dead adapter reports no faults, and is the case that matters most.
            faults = f"FILL(faults, 0) + IF({unanswered} > 0, {unanswered}, 0)"
        else:
            using, faults = sagemaker, "failed - refused"
        return self._alarm(
            "Faults",
            f"{self._name}: more than {thresholds.fault_percent:g} % of the requests end in a fault of the endpoint "
            "(5xx but for 503 busy, time-outs, broken connections)",
            cloudwatch.MathExpression(
                expression=f"100 * ({faults}) / invocations", using_metrics=using, period=_MINUTE, label="faults (%)"
            ),
            threshold=thresholds.fault_percent,
        )

    def _latency(self, thresholds: Thresholds) -> cloudwatch.Alarm:
        return self._alarm(
            "Latency",
            f"{self._name}: the slowest hundredth of the answers takes more than "
            f"{thresholds.p99_latency_seconds:g} s in the container",
            self._metrics.invocation("ModelLatency", "p99"),
            threshold=thresholds.p99_latency_seconds * MICROSECONDS,
        )

    def _option_mass(self, thresholds: Thresholds) -> cloudwatch.Alarm:
        return self._alarm(
            "OptionMass",
            f"{self._name}: the options have less than {thresholds.option_mass:g} of the probability on average: "
            "a wrong model, template or prompt",
            self._metrics.adapter("AllowedTokenMass", "Average"),
            threshold=thresholds.option_mass,
            compare=_COMPARE.LESS_THAN_THRESHOLD,
        )

    def _busy(self, thresholds: Thresholds) -> cloudwatch.Alarm:
        """A quarter of an hour: scaling out has had its chance."""
        return self._alarm(
            "Busy",
            f"{self._name}: more than {thresholds.busy_percent:g} % of the requests are refused with 503 for want of "
            "time: more instances, or fewer callers",
            cloudwatch.MathExpression(
                expression="IF(requests > 0, 100 * busy / requests, 0)",
                using_metrics={
                    "busy": self._metrics.adapter("Busy", "Sum", period=_FIVE_MINUTES),
                    "requests": self._metrics.adapter("Requests", "Sum", period=_FIVE_MINUTES),
                },
                period=_FIVE_MINUTES,
                label="busy (%)",
            ),
            threshold=thresholds.busy_percent,
            out_of=(3, 3),
        )

    def _layers_on_cpu(self) -> cloudwatch.Alarm:
        return self._alarm(
            "GpuUnused",
            f"{self._name}: an instance with a GPU runs the model on its CPU (driver, image or setting)",
            self._metrics.adapter("GpuLayers", "Minimum"),
            threshold=1,
            compare=_COMPARE.LESS_THAN_THRESHOLD,
            out_of=(3, 3),
        )

    def _gpu_memory_is_idle(self) -> cloudwatch.Alarm:
        return self._alarm(
            "GpuUnused",
            f"{self._name}: an instance has nothing in its GPU's memory: the model runs on its CPU (driver, image or "
            "setting)",
            self._metrics.utilization("GPUMemoryUtilization", "Minimum"),
            threshold=_IDLE_GPU_MEMORY_PERCENT,
            compare=_COMPARE.LESS_THAN_THRESHOLD,
            # An instance that scaling adds reports before its model is loaded.
            out_of=(20, 20),
            missing=_ALWAYS,
        )

    def _adapter_is_silent(self) -> cloudwatch.Alarm:
        return self._alarm(
            "Silent",
            f"{self._name}: no adapter has reported for minutes: none is alive",
            self._metrics.adapter("Requests", "SampleCount"),
            threshold=1,
            compare=_COMPARE.LESS_THAN_THRESHOLD,
            out_of=(5, 5),
            missing=_ALWAYS,
        )

    def _instances_are_missing(self, min_instances: int) -> cloudwatch.Alarm:
        """SageMaker has no metric of health; but each instance reports its load once a minute, five times in five.

        One report in five may fall on the other side of the border.
        """
        return self._alarm(
            "InstancesMissing",
            f"{self._name}: fewer than {min_instances} instances report: one is lost and has not been replaced",
            self._metrics.utilization("CPUUtilization", "SampleCount", period=_FIVE_MINUTES),
            threshold=4 * min_instances,
            compare=_COMPARE.LESS_THAN_THRESHOLD,
            out_of=(2, 2),
            missing=_ALWAYS,
        )

    def _alarm(
        self,
        id_: str,
        description: str,
        metric: cloudwatch.IMetric,
        *,
        threshold: float,
        compare: cloudwatch.ComparisonOperator = _COMPARE.GREATER_THAN_THRESHOLD,
        out_of: tuple[int, int] = (3, 5),
        missing: cloudwatch.TreatMissingData = _WITH_REQUESTS,
    ) -> cloudwatch.Alarm:
        """An alarm that rings when `out_of` (so many, of so many) periods are beyond the threshold."""
        needed, looked_at = out_of
        alarm = cloudwatch.Alarm(
            self,
            id_,
            metric=metric,
            threshold=threshold,
            comparison_operator=compare,
            evaluation_periods=looked_at,
            datapoints_to_alarm=needed,
            treat_missing_data=missing,
            alarm_description=description,
        )
        alarm.add_alarm_action(self._action)
        alarm.add_ok_action(self._action)
        return alarm
