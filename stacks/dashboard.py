"""The dashboard of an environment: how fast, how right, how busy, and on what, for each of its endpoints."""

from collections.abc import Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from stacks.metrics import EndpointMetrics

_WIDTH = 24  # columns that CloudWatch divides a dashboard into
_HEIGHT = 6


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the dashboard has to know of an endpoint."""

    metrics: EndpointMetrics
    log_group_name: str
    # Whether the adapter serves, which has metrics and log lines of its own; else it is a text endpoint.
    decides: bool
    has_gpu: bool
    # One type, or a pool's types in order of preference.
    instance_types: Sequence[str]


class EnvironmentDashboard(Construct):
    """One dashboard, with rows for each endpoint. It has a name of its own, by which people find it in the console."""

    def __init__(
        self, scope: Construct, id_: str, *, name: str, endpoints: Sequence[Shown], alarms: Sequence[cloudwatch.IAlarm]
    ) -> None:
        super().__init__(scope, id_)
        dashboard = cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=name,
            default_interval=cdk.Duration.hours(6),
            # An average over hours hides what happened in a minute.
            period_override=cloudwatch.PeriodOverride.INHERIT,
        )
        if alarms:
            dashboard.add_widgets(
                cloudwatch.AlarmStatusWidget(alarms=list(alarms), title="Alarms", width=_WIDTH, height=3)
            )
        for endpoint in endpoints:
            dashboard.add_widgets(_heading(endpoint))
            dashboard.add_widgets(_latency(endpoint), _requests(endpoint), _instances(endpoint))
            if endpoint.decides:
                dashboard.add_widgets(_busy(endpoint), _tokens_reused(endpoint), _option_mass(endpoint))
            dashboard.add_widgets(_utilization(endpoint), *_logs(endpoint))


def _graph(title: str, *left: cloudwatch.IMetric, unit: str, percent: bool = False) -> cloudwatch.GraphWidget:
    """A third of a row; a share keeps its scale, so that a flat line at 2 % looks like one."""
    axis = cloudwatch.YAxisProps(label=unit, show_units=False, min=0, max=100 if percent else None)
    return cloudwatch.GraphWidget(title=title, left=list(left), left_y_axis=axis, width=_WIDTH // 3, height=_HEIGHT)


def _heading(endpoint: Shown) -> cloudwatch.TextWidget:
    name = endpoint.metrics.endpoint_name
    lines = [f"## {name}", f"{'decisions' if endpoint.decides else 'text'} on {', '.join(endpoint.instance_types)}"]
    if len(endpoint.instance_types) > 1:
        lines.append(
            f"— how many run of each type: `aws sagemaker describe-endpoint --endpoint-name {name} "
            "--query 'ProductionVariants[].InstancePools'`"
        )
    return cloudwatch.TextWidget(
        markdown="\n".join(lines), width=_WIDTH, height=2, background=cloudwatch.TextWidgetBackground.TRANSPARENT
    )


def _latency(endpoint: Shown) -> cloudwatch.GraphWidget:
    """SageMaker's microseconds, as milliseconds."""
    lines = [
        cloudwatch.MathExpression(
            expression=f"{statistic} / 1000",
            using_metrics={statistic: endpoint.metrics.invocation("ModelLatency", statistic)},
            label=statistic,
            period=cdk.Duration.minutes(1),
        )
        for statistic in ("p50", "p95", "p99")
    ]
    return _graph("Latency in the container", *lines, unit="ms")


def _requests(endpoint: Shown) -> cloudwatch.GraphWidget:
    """A busy adapter's 503 is a 5xx here; `failed` counts every call that did not end in 2xx."""
    metrics = endpoint.metrics
    lines = [
        metrics.invocation("Invocations", "Sum", label="invocations"),
        metrics.invocation("Invocation4XXErrors", "Sum", label="4xx"),
        metrics.invocation("Invocation5XXErrors", "Sum", label="5xx, 503 busy included"),
        metrics.invocation("InvocationModelErrors", "Sum", label="failed, unanswered included"),
    ]
    if endpoint.decides:
        lines.append(metrics.adapter("Errors", "Sum", label="5xx but 503, of the adapter"))
    return _graph("Requests a minute", *lines, unit="requests")


def _instances(endpoint: Shown) -> cloudwatch.GraphWidget:
    """Placement: SageMaker counts no instances, but each reports its load once a minute, in a pool under its type."""
    if len(endpoint.instance_types) == 1:
        counts = [endpoint.metrics.utilization("CPUUtilization", "SampleCount", label=endpoint.instance_types[0])]
    else:
        counts = [
            endpoint.metrics.utilization("CPUUtilization", "SampleCount", label=type_, instance_type=type_)
            for type_ in endpoint.instance_types
        ]
    return _graph("Instances that report", *counts, unit="instances")


def _busy(endpoint: Shown) -> cloudwatch.GraphWidget:
    share = cloudwatch.MathExpression(
        expression="IF(requests > 0, 100 * busy / requests, 0)",
        using_metrics={
            "busy": endpoint.metrics.adapter("Busy", "Sum"),
            "requests": endpoint.metrics.adapter("Requests", "Sum"),
        },
        label="refused with 503",
        period=cdk.Duration.minutes(1),
    )
    return _graph("Busy share", share, unit="%", percent=True)


def _tokens_reused(endpoint: Shown) -> cloudwatch.GraphWidget:
    share = cloudwatch.MathExpression(
        expression="IF(reused + evaluated > 0, 100 * reused / (reused + evaluated), 0)",
        using_metrics={
            "reused": endpoint.metrics.adapter("TokensReused", "Sum"),
            "evaluated": endpoint.metrics.adapter("TokensEvaluated", "Sum"),
        },
        label="of the prompt tokens",
        period=cdk.Duration.minutes(1),
    )
    return _graph("Tokens reused", share, unit="%", percent=True)


def _option_mass(endpoint: Shown) -> cloudwatch.GraphWidget:
    return _graph(
        "Probability of the declared options",
        endpoint.metrics.adapter("AllowedTokenMass", "Average", label="mean"),
        endpoint.metrics.adapter("AllowedTokenMass", "p10", label="p10"),
        unit="of all tokens",
    )


def _utilization(endpoint: Shown) -> cloudwatch.GraphWidget:
    """CPU and GPU of one instance add up over their cores: 8 busy cores are 800 %."""
    names = ["CPUUtilization", "MemoryUtilization"]
    if endpoint.has_gpu:
        names += ["GPUUtilization", "GPUMemoryUtilization"]
    lines = [endpoint.metrics.utilization(name, "Average", label=name.removesuffix("Utilization")) for name in names]
    return _graph("Utilization of an instance", *lines, unit="%")


def _logs(endpoint: Shown) -> Sequence[cloudwatch.LogQueryWidget]:
    """What to read first when a line above goes the wrong way."""
    if not endpoint.decides:
        return [
            _query(endpoint, "Errors in the log", ["fields @timestamp, @message", "filter @message like /(?i)error/"])
        ]
    fields = "fields @timestamp, request_id, path, kind, status, milliseconds, tokens_evaluated"
    return [
        _query(endpoint, "Requests that failed", [fields, "filter status >= 400"]),
        _query(endpoint, "Slowest requests", [fields, "filter status < 400"], order="milliseconds"),
    ]


def _query(
    endpoint: Shown, title: str, lines: Sequence[str], *, order: str = "@timestamp"
) -> cloudwatch.LogQueryWidget:
    return cloudwatch.LogQueryWidget(
        title=title,
        log_group_names=[endpoint.log_group_name],
        query_lines=[*lines, f"sort {order} desc", "limit 20"],
        view=cloudwatch.LogQueryVisualizationType.TABLE,
        width=_WIDTH // 3,
        height=_HEIGHT,
    )
