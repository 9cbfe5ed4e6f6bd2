"""What MiniStack's CloudFormation lacks or drops and the stacks need.

- types registered from outside, which block while they work
- AWS::S3::Bucket: Tags (auto-delete asks for them), and the refusal to delete a bucket that is not empty
- AWS::CodeBuild::Project: LogsConfig
- AWS::ECR::Repository: a deleted repository's layers and manifests
- a Lambda function's last lines, which would make its deleted log group anew
- AWS::CloudWatch::Alarm: Metrics (metric math), kept and shown, never evaluated: such an alarm changes by SetAlarmState
"""
# ruff: noqa: SLF001 - MiniStack has no public names for what it keeps; its release is pinned

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ministack.services import cloudwatch_logs, codebuild, ecr, lambda_svc, s3
from ministack.services.cloudformation import provisioners, stacks

from emulator.aws import from_cloudformation, input_shape, validate
from emulator.settings import ACCOUNT, REGION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from emulator.aws import Params
    from emulator.roles import Roles


def register_types(types: Mapping[str, Any]) -> None:
    """Make resource types known. Each has create, update, delete and `create_only`, and may block."""
    for name, kind in types.items():
        provisioners._RESOURCE_HANDLERS[name] = {"create": kind.create, "update": kind.update, "delete": kind.delete}
        provisioners._REPLACING_PROPERTIES[name] = kind.create_only
        if name.startswith("AWS::SageMaker::"):
            provisioners._STACK_TAG_PROPERTY[name] = ("Tags", "list")
            own_name = f"{name.rpartition('::')[2]}Name"
            provisioners._CUSTOM_NAME_REPLACEMENT[name] = {"name": own_name}
    blocks = stacks._runs_on_worker_thread
    # On the event loop a waiting handler would deadlock with what it waits for.
    stacks._runs_on_worker_thread = lambda kind: kind in types or blocks(kind)


def close(roles: Roles) -> None:
    """Wrap MiniStack's own handlers."""
    bucket = provisioners._RESOURCE_HANDLERS["AWS::S3::Bucket"]
    create_bucket, update_bucket, delete_bucket = bucket["create"], bucket["update"], bucket["delete"]

    def created_with_tags(logical_id: str, props: Params, stack: str) -> Any:
        result = create_bucket(logical_id, props, stack)
        _tag_bucket(result[0], props)
        return result

    def updated_with_tags(physical_id: str, old: Params, new: Params, stack: str) -> Any:
        result = update_bucket(physical_id, old, new, stack)
        _tag_bucket(result[0], new)
        return result

    def deleted_when_empty(physical_id: str, props: Params) -> None:
        if s3._buckets.get(physical_id, {}).get("objects") or s3._bucket_has_versions(physical_id):
            raise ValueError(f"The bucket you tried to delete is not empty ({physical_id})")
        delete_bucket(physical_id, props)

    bucket |= {"create": created_with_tags, "update": updated_with_tags, "delete": deleted_when_empty}
    provisioners._STACK_TAG_PROPERTY["AWS::S3::Bucket"] = ("Tags", "list")

    repository = provisioners._RESOURCE_HANDLERS["AWS::ECR::Repository"]
    delete_repository = repository["delete"]

    def deleted_with_content(physical_id: str, props: Params) -> None:
        delete_repository(physical_id, props)
        ecr._layer_blobs.pop(physical_id, None)
        ecr._manifest_blobs.pop(physical_id, None)

    repository["delete"] = deleted_with_content

    project = provisioners._RESOURCE_HANDLERS["AWS::CodeBuild::Project"]
    create_project, update_project = project["create"], project["update"]

    def created_with_logs(logical_id: str, props: Params, stack: str) -> Any:
        result = create_project(logical_id, props, stack)
        _configure_logs(result[0], props)
        return result

    def updated_with_logs(physical_id: str, old: Params, new: Params, stack: str) -> Any:
        result = update_project(physical_id, old, new, stack)
        _configure_logs(result[0], new)
        return result

    project |= {"create": created_with_logs, "update": updated_with_logs}

    _accept_metric_math()

    emit = lambda_svc._emit_lambda_logs

    def emitted_into_existing_group(function: Params, *arguments: Any, **options: Any) -> None:
        """A function bound to a group of its own has no right to make one: lines that come after its end are lost.

        So are the lines of a function whose role may not write them.
        """
        config = function.get("config") or function
        group = _bound_log_group(config)
        if group is not None and group not in cloudwatch_logs._log_groups:
            return
        stream = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{group or _own_log_group(config)}:log-stream:lines"
        if all(roles.may(config["Role"], action, stream) for action in ("logs:CreateLogStream", "logs:PutLogEvents")):
            emit(function, *arguments, **options)

    lambda_svc._emit_lambda_logs = emitted_into_existing_group


def _accept_metric_math() -> None:
    record_of = provisioners._cw_metric_alarm_record

    def record(name: str, props: Params) -> Any:
        if not props.get("Metrics"):
            return record_of(name, props)
        shape = input_shape("cloudwatch", "PutMetricAlarm")
        params = from_cloudformation({**props, "AlarmName": name}, shape)
        validate(params, shape)
        # MiniStack leaves alone what has no metric of its own.
        made = record_of(name, {**props, "Metrics": None, "MetricName": "-", "Namespace": "-"})
        for member in ("MetricName", "Namespace", "Statistic", "ExtendedStatistic", "Period", "Dimensions", "Unit"):
            made.pop(member, None)
        return {**made, "Metrics": params["Metrics"]}

    provisioners._cw_metric_alarm_record = record


def _bound_log_group(config: Params) -> str | None:
    """The log group that a function's configuration names, where it is not the one that Lambda makes by itself."""
    group: str | None = (config.get("LoggingConfig") or {}).get("LogGroup")
    return None if group == _own_log_group(config) else group


def _own_log_group(config: Params) -> str:
    return f"/aws/lambda/{config.get('FunctionName')}"


def _tag_bucket(name: str, props: Params) -> None:
    s3._bucket_tags[name] = {tag["Key"]: tag["Value"] for tag in props.get("Tags") or []}


def _configure_logs(project: str, props: Params) -> None:
    codebuild._projects[project]["logsConfig"] = provisioners._pascal_to_camel(props.get("LogsConfig") or {})
