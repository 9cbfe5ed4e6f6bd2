"""Alarms and dashboard: that they watch metrics which somebody writes, and ring when and only when they should."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import assertions
from aws_cdk import aws_cloudwatch as cloudwatch
from hypothesis import given
from hypothesis import strategies as st

from adapter.api import emf
from adapter.api.record import Record
from adapter.api.telemetry import _line
from stacks.alarms import AlarmTopic, EndpointAlarms
from stacks.checks import ConfigError
from stacks.config import BlueGreen, Rolling
from stacks.dashboard import EnvironmentDashboard, Shown
from stacks.metrics import ADAPTER_NAMESPACE, EndpointMetrics
from stacks.thresholds import Thresholds
from tests.stacks.conftest import Templates
from tests.stacks.sagemaker_metrics import DIMENSIONS, is_documented

Properties = dict[str, Any]
POOL = ("ml.g6e.xlarge", "ml.g5.2xlarge")


class _Watched(cdk.Stack):
    """Endpoints of each kind, watched: decisions on a GPU pool, text on a GPU type, decisions that scale to zero."""

    def __init__(self, scope: cdk.App) -> None:
        super().__init__(scope, "Watched")
        topic = AlarmTopic(self, "Alarms", email="ops@example.com").topic
        endpoint = cdk.CfnResource(self, "Endpoint", type="AWS::SageMaker::Endpoint", properties={})
        shown: list[Shown] = []
        alarms: list[cloudwatch.Alarm] = []
        for title, decides, types in (("Decision", True, POOL), ("Text", False, POOL[:1])):
            metrics = EndpointMetrics(endpoint_name=title.lower(), variant_name="main")
            of_one = EndpointAlarms(
                self,
                title,
                metrics=metrics,
                thresholds=Thresholds(p99_latency_seconds=1.5),
                decides=decides,
                has_gpu=True,
                min_instances=2,
                topic=topic,
            )
            of_one.wait_for(endpoint)
            alarms += of_one.all
            shown.append(
                Shown(
                    metrics=metrics,
                    log_group_name=f"/aws/sagemaker/Endpoints/{title.lower()}",
                    decides=decides,
                    has_gpu=True,
                    instance_types=types,
                )
            )
            cdk.CfnOutput(self, f"{title}Rollback", value=",".join(alarm.node.id for alarm in of_one.rollback))
        idle = EndpointMetrics(endpoint_name="idle", variant_name="main")
        of_idle = EndpointAlarms(
            self,
            "Idle",
            metrics=idle,
            thresholds=Thresholds(),
            decides=True,
            has_gpu=False,
            min_instances=0,
            topic=topic,
        )
        of_idle.wait_for(endpoint)
        EnvironmentDashboard(self, "Dashboard", name="decision-endpoints-test", endpoints=shown, alarms=alarms)


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    app = cdk.App()
    return dict(assertions.Template.from_stack(_Watched(app)).to_json())


@pytest.fixture(scope="module")
def alarms(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each alarm as a whole resource, by the names that the constructs gave it."""
    return {
        re.sub(r"[0-9A-F]{8}$", "", id_): resource
        for id_, resource in template["Resources"].items()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    }


@pytest.fixture(scope="module")
def widgets(template: dict[str, Any]) -> list[dict[str, Any]]:
    (dashboard,) = [r for r in template["Resources"].values() if r["Type"] == "AWS::CloudWatch::Dashboard"]
    parts = dashboard["Properties"]["DashboardBody"]["Fn::Join"][1]
    body = json.loads("".join(part if isinstance(part, str) else "x" for part in parts))
    found: list[dict[str, Any]] = body["widgets"]
    return found


def _metrics_of(alarm: Properties) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Namespace, name, statistic and dimensions of all that an alarm watches."""
    if "MetricName" in alarm:
        queries = [alarm]
    else:
        queries = [
            {**query["MetricStat"]["Metric"], "Statistic": query["MetricStat"]["Stat"]}
            for query in alarm["Metrics"]
            if "MetricStat" in query
        ]
    for query in queries:
        dimensions = {dimension["Name"]: dimension["Value"] for dimension in query["Dimensions"]}
        statistic = query.get("Statistic") or query["ExtendedStatistic"]
        yield query["Namespace"], query["MetricName"], statistic, dimensions


def _metrics_drawn(widgets: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """The same of all graphs."""
    for widget in widgets:
        for line in widget["properties"].get("metrics", []):
            if isinstance(line[0], dict):
                continue  # an expression over the others
            namespace, name, *rest = line
            options = rest.pop() if isinstance(rest[-1], dict) else {}
            dimensions = dict(zip(rest[::2], rest[1::2], strict=True))
            yield namespace, name, options.get("stat", "Average"), dimensions


def test_every_metric_is_written_by_sagemaker_or_by_the_adapter(
    alarms: dict[str, dict[str, Any]], widgets: list[dict[str, Any]]
) -> None:
    lines: list[str] = []
    writer = emf.EmbeddedMetrics(ADAPTER_NAMESPACE, "decision", gpu_layers=1, write=lines.append)
    record = Record()
    record.masses, record.decision_seconds = [0.5], 1.0
    writer.observe(record, "/invocations", 200)
    writer.flush()
    (directive,) = json.loads(lines[0])["_aws"]["CloudWatchMetrics"]
    written = {metric["Name"] for metric in directive["Metrics"]}

    watched = [metric for alarm in alarms.values() for metric in _metrics_of(alarm["Properties"])]
    drawn = list(_metrics_drawn(widgets))
    assert {name for _, name, _, _ in drawn} >= {"ModelLatency", "Busy", "TokensReused", "CPUUtilization"}
    for namespace, name, statistic, dimensions in watched + drawn:
        if namespace == directive["Namespace"]:
            assert name in written
            assert [set(dimensions)] == [set(names) for names in directive["Dimensions"]]
            assert dimensions["EndpointName"] in ("decision", "idle")  # a text endpoint has no adapter
        else:
            assert is_documented(namespace, name, statistic), (namespace, name, statistic)
            assert set(dimensions) in DIMENSIONS
            assert dimensions["VariantName"] == "main"


def test_each_kind_of_endpoint_has_its_alarms(alarms: dict[str, dict[str, Any]]) -> None:
    assert sorted(alarms) == [
        "DecisionBusy",
        "DecisionFaults",
        "DecisionGpuUnused",
        "DecisionInstancesMissing",
        "DecisionLatency",
        "DecisionOptionMass",
        "DecisionSilent",
        # Scaled to zero it has no instance that could report, and is right.
        "IdleBusy",
        "IdleFaults",
        "IdleLatency",
        "IdleOptionMass",
        "TextFaults",
        "TextGpuUnused",
        "TextInstancesMissing",
        "TextLatency",
    ]


def test_a_deployment_is_ended_by_what_is_wrong_with_the_answers(template: dict[str, Any]) -> None:
    outputs = {name: output["Value"] for name, output in template["Outputs"].items()}
    assert outputs["DecisionRollback"] == "Faults,Latency,OptionMass,GpuUnused"
    assert outputs["TextRollback"] == "Faults,Latency"


def test_silence_is_a_fault_only_where_something_always_speaks(alarms: dict[str, dict[str, Any]]) -> None:
    breaching = {id_ for id_, alarm in alarms.items() if alarm["Properties"]["TreatMissingData"] == "breaching"}
    assert breaching == {"DecisionSilent", "DecisionInstancesMissing", "TextInstancesMissing", "TextGpuUnused"}
    # Before the endpoint is there it cannot speak. The others must not wait: it waits for them, to be rolled back.
    assert {id_ for id_, alarm in alarms.items() if alarm.get("DependsOn") == ["Endpoint"]} == breaching


def test_a_busy_adapters_503_is_no_fault(alarms: dict[str, dict[str, Any]]) -> None:
    """The expression, worked out as CloudWatch does, for what one minute may bring."""

    def faults(id_: str, **sums: float) -> float:
        queries = {query["Id"]: query for query in alarms[id_]["Properties"]["Metrics"]}
        names = {
            query_id: query["MetricStat"]["Metric"]["MetricName"]
            for query_id, query in queries.items()
            if "MetricStat" in query
        }
        (expression,) = [query["Expression"] for query in queries.values() if "Expression" in query]
        values = {query_id: sums.get(name) for query_id, name in names.items()}
        functions = {
            "FILL": lambda value, default: default if value is None else value,
            "IF": lambda condition, yes, no: yes if condition else no,
        }
        result: float = eval(expression, {"__builtins__": {}}, {**values, **functions})  # noqa: S307  our own expression
        return result

    answered: dict[str, float] = {"Invocations": 200, "Invocation4XXErrors": 10}
    # 40 refused with 503, and 10 mistakes of the callers': nothing of ours.
    assert faults("DecisionFaults", **answered, InvocationModelErrors=50, Invocation5XXErrors=40, Errors=0) == 0
    # Of the 40, 6 were faults.
    assert faults("DecisionFaults", **answered, InvocationModelErrors=50, Invocation5XXErrors=40, Errors=6) == 3
    # 20 more got no answer at all, from an adapter that is dead and writes nothing.
    assert faults("DecisionFaults", **answered, InvocationModelErrors=70, Invocation5XXErrors=40) == 10
    # Were a model error not what it is documented to be, a fault of the adapter would still count.
    assert faults("DecisionFaults", **answered, InvocationModelErrors=0, Invocation5XXErrors=40, Errors=6) == 3
    # A text endpoint's 503 means that it is not there: a fault.
    assert faults("TextFaults", **answered, InvocationModelErrors=50) == 20


@pytest.mark.parametrize(
    ("id_", "comparison", "threshold", "periods"),
    [
        ("DecisionFaults", "GreaterThanThreshold", 1, (3, 5)),
        # 1.5 s, in SageMaker's microseconds.
        ("DecisionLatency", "GreaterThanThreshold", 1_500_000, (3, 5)),
        ("DecisionOptionMass", "LessThanThreshold", 0.5, (3, 5)),
        ("DecisionBusy", "GreaterThanThreshold", 5, (3, 3)),
        ("DecisionGpuUnused", "LessThanThreshold", 1, (3, 3)),
        ("DecisionSilent", "LessThanThreshold", 1, (5, 5)),
        # Two instances report ten times in five minutes; one alone five times.
        ("DecisionInstancesMissing", "LessThanThreshold", 8, (2, 2)),
        ("TextGpuUnused", "LessThanThreshold", 1, (20, 20)),
    ],
)
def test_when_an_alarm_rings(
    alarms: dict[str, dict[str, Any]], id_: str, comparison: str, threshold: float, periods: tuple[int, int]
) -> None:
    alarm = alarms[id_]["Properties"]
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == (comparison, threshold)
    assert (alarm.get("DatapointsToAlarm", alarm["EvaluationPeriods"]), alarm["EvaluationPeriods"]) == periods


def test_an_update_is_watched_for_longer_than_a_rollback_alarm_needs(
    template: dict[str, Any], alarms: dict[str, dict[str, Any]]
) -> None:
    watched = min(BlueGreen().wait_seconds, Rolling().wait_seconds)
    for kind in ("Decision", "Text"):
        for id_ in template["Outputs"][f"{kind}Rollback"]["Value"].split(","):
            alarm = alarms[f"{kind}{id_}"]["Properties"]
            queries = [query["MetricStat"] for query in alarm.get("Metrics", []) if "MetricStat" in query]
            (period,) = {query["Period"] for query in queries or [alarm]}
            periods = alarm.get("DatapointsToAlarm", alarm["EvaluationPeriods"])
            # CloudWatch has a minute's data up to two minutes later, and looks once a minute.
            assert periods * period + 180 <= watched, id_


def test_every_alarm_tells_the_topic_when_it_rings_and_when_it_is_over(alarms: dict[str, dict[str, Any]]) -> None:
    for alarm in alarms.values():
        (action,) = alarm["Properties"]["AlarmActions"]
        assert action["Ref"].startswith("AlarmsTopic")
        assert alarm["Properties"]["OKActions"] == [action]
        assert re.match(r"(decision|text|idle): ", alarm["Properties"]["AlarmDescription"])


def test_only_this_accounts_alarms_publish_and_only_by_tls(template: dict[str, Any]) -> None:
    (policy,) = [r["Properties"] for r in template["Resources"].values() if r["Type"] == "AWS::SNS::TopicPolicy"]
    statements = policy["PolicyDocument"]["Statement"]
    (denied,) = [statement for statement in statements if statement["Effect"] == "Deny"]
    assert (denied["Action"], denied["Condition"]) == ("sns:Publish", {"Bool": {"aws:SecureTransport": "false"}})
    (allowed,) = [statement for statement in statements if statement["Effect"] == "Allow"]
    from_here = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    assert (allowed["Action"], allowed["Condition"]) == ("sns:Publish", from_here)
    assert allowed["Principal"] == {"Service": "cloudwatch.amazonaws.com"}

    (topic,) = [r["Properties"] for r in template["Resources"].values() if r["Type"] == "AWS::SNS::Topic"]
    ((key_id, key),) = [(i, r["Properties"]) for i, r in template["Resources"].items() if r["Type"] == "AWS::KMS::Key"]
    assert topic["KmsMasterKeyId"] == {"Fn::GetAtt": [key_id, "Arn"]}
    assert key["EnableKeyRotation"] is True
    # Without this an alarm's message is lost and nobody is told.
    (for_alarms,) = [s for s in key["KeyPolicy"]["Statement"] if "Service" in s["Principal"]]
    assert for_alarms["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert for_alarms["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    (subscription,) = [r["Properties"] for r in template["Resources"].values() if r["Type"] == "AWS::SNS::Subscription"]
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "ops@example.com")


def test_the_dashboard_shows_each_endpoint(widgets: list[dict[str, Any]]) -> None:
    titles = [widget["properties"].get("title") for widget in widgets]
    common = ["Latency in the container", "Requests a minute", "Instances that report"]
    of_decisions = ["Busy share", "Tokens reused", "Probability of the declared options"]
    assert titles == [
        "Alarms",
        None,
        *common,
        *of_decisions,
        "Utilization of an instance",
        "Requests that failed",
        "Slowest requests",
        None,
        *common,
        "Utilization of an instance",
        "Errors in the log",
    ]
    places = {(widget["x"], widget["y"]) for widget in widgets}
    assert len(places) == len(widgets)


def test_latency_is_drawn_in_milliseconds_at_three_percentiles(widgets: list[dict[str, Any]]) -> None:
    (drawn, _) = [w["properties"]["metrics"] for w in widgets if "Latency" in w["properties"].get("title", "")]
    expressions = [line[0]["expression"] for line in drawn if isinstance(line[0], dict)]
    assert expressions == ["p50 / 1000", "p95 / 1000", "p99 / 1000"]


def test_a_pool_is_drawn_type_by_type(widgets: list[dict[str, Any]]) -> None:
    of_pool, of_one_type = [w for w in widgets if w["properties"].get("title") == "Instances that report"]
    assert [dimensions.get("InstanceType") for *_, dimensions in _metrics_drawn([of_pool])] == list(POOL)
    assert [dimensions.get("InstanceType") for *_, dimensions in _metrics_drawn([of_one_type])] == [None]
    assert {statistic for _, _, statistic, _ in _metrics_drawn([of_pool, of_one_type])} == {"SampleCount"}


def test_the_log_is_asked_for_fields_that_the_adapter_writes(widgets: list[dict[str, Any]]) -> None:
    written = set(json.loads(_line(Record(), "/invocations", 200, 0.1)))
    queries = [w["properties"]["query"] for w in widgets if w["type"] == "log"]
    assert len(queries) == 3
    for query in queries:
        source, fields, condition, order, limit = re.split(r"\s*\| ", query)
        assert source.startswith("SOURCE '/aws/sagemaker/Endpoints/")
        asked = re.findall(r"@?\w+", fields.removeprefix("fields"))
        asked += [condition.split()[1], order.split()[1]]
        assert {name for name in asked if not name.startswith("@")} <= written
        assert limit == "limit 20"


@given(
    st.sampled_from(["p99_latency_seconds", "fault_percent", "busy_percent", "option_mass"]),
    st.one_of(st.floats(), st.integers(-5, 200), st.booleans(), st.none(), st.text(max_size=3)),
)
def test_a_threshold_is_a_number_within_its_bounds(name: str, value: Any) -> None:
    bounds = {"p99_latency_seconds": (0.05, 60), "option_mass": (0.001, 1)}
    low, high = bounds.get(name, (0.01, 100))
    values: dict[str, Any] = {name: value}
    if type(value) in (int, float) and low <= value <= high:
        assert getattr(Thresholds(**values), name) == value
    else:
        with pytest.raises(ConfigError, match=rf"Thresholds\.{name} is .*; allowed: a number from {low:g} to {high:g}"):
            Thresholds(**values)


def test_an_endpoints_role_reads_the_alarms_that_undo_its_roll_out_and_no_others(prod: Templates) -> None:
    for endpoint in prod.environment.endpoints:
        title = "".join(part.capitalize() for part in endpoint.name.split("-"))
        guard = prod.one("AWS::SageMaker::Endpoint", f"{title}Endpoint/")["DeploymentConfig"]
        names = [alarm["AlarmName"]["Ref"] for alarm in guard["AutoRollbackConfiguration"]["Alarms"]]
        statements = prod.statements(f"{title}Endpoint/Role")
        (reading,) = [statement for statement in statements if statement["Action"] == "cloudwatch:DescribeAlarms"]
        assert sorted(arn["Fn::GetAtt"][0] for arn in reading["Resource"]) == sorted(names)


def test_an_environments_own_key_encrypts_its_alarms_too(prod: Templates) -> None:
    ((key_id, key),) = prod.of_type("AWS::KMS::Key").items()
    topic = prod.one("AWS::SNS::Topic")
    assert topic["KmsMasterKeyId"]["Fn::ImportValue"].startswith(
        f"decision-endpoints-prod-artifacts:ExportsOutputFnGetAtt{key_id}Arn"
    )
    services = [s["Principal"].get("Service") for s in key["Properties"]["KeyPolicy"]["Statement"]]
    assert "cloudwatch.amazonaws.com" in services


def test_nobody_pays_for_metrics_that_nobody_asked_for(templates: Templates) -> None:
    for config in templates.of_type("AWS::SageMaker::EndpointConfig").values():
        assert config["Properties"]["MetricsConfig"] == {"EnableDetailedObservability": False}


def test_every_environment_has_its_dashboard(templates: Templates) -> None:
    dashboard = templates.one("AWS::CloudWatch::Dashboard")
    assert dashboard["DashboardName"] == f"decision-endpoints-{templates.environment.name}"
    for endpoint in templates.environment.endpoints:
        assert f"## {templates.environment.endpoint_name(endpoint)}" in json.dumps(dashboard["DashboardBody"])
