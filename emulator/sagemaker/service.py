"""SageMaker's two APIs behind one router: operations by X-Amz-Target, invocations by path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from emulator.aws import AwsError, Params, Response, call, invalid
from emulator.sagemaker.catalog import Catalog
from emulator.sagemaker.endpoints import Endpoints
from emulator.sagemaker.invocations import Invocation, invoke
from emulator.sagemaker.playground import page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from emulator.workshop import Workshop

_INVOCATION = re.compile(r"/endpoints/([^/]+)/(invocations|async-invocations|invocations-response-stream)")
_PAGE = re.compile(r"/endpoints/([^/]+)/")


class SageMaker:
    """The service: its records, and the operations on them."""

    def __init__(self, workshop: Workshop) -> None:
        self._tags: dict[str, list[Params]] = {}
        self.catalog = Catalog(self._set_tags, workshop.settings.no_capacity)
        self.endpoints = Endpoints(workshop, self.catalog, self._set_tags)
        self._operations: dict[str, Callable[[Params], Params]] = {
            "CreateModel": self.catalog.create_model,
            "DescribeModel": self.catalog.describe_model,
            "ListModels": self.catalog.list_models,
            "DeleteModel": self.catalog.delete_model,
            "CreateEndpointConfig": self.catalog.create_config,
            "DescribeEndpointConfig": self.catalog.describe_config,
            "ListEndpointConfigs": self.catalog.list_configs,
            "DeleteEndpointConfig": self.catalog.delete_config,
            "CreateEndpoint": self.endpoints.create,
            "DescribeEndpoint": self.endpoints.describe,
            "UpdateEndpoint": self.endpoints.update,
            "UpdateEndpointWeightsAndCapacities": self.endpoints.update_weights,
            "ListEndpoints": self.endpoints.list,
            "DeleteEndpoint": self.endpoints.delete,
            "AddTags": self.add_tags,
            "ListTags": self.list_tags,
            "DeleteTags": self.delete_tags,
        }

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Answer one request. Blocks while a container works on an invocation."""
        target = headers.get("x-amz-target", "")
        if target:
            return call("sagemaker", self._operations, target, body)
        match = _INVOCATION.fullmatch(path)
        if method == "POST" and match:
            return invoke(self.endpoints, Invocation(unquote(match[1]), match[2], headers, body))
        match = _PAGE.fullmatch(path)
        if method == "GET" and match:
            return page(self.endpoints, unquote(match[1]))
        return AwsError("UnknownOperationException", f"SageMaker has no {method} {path} in the emulator").response()

    def add_tags(self, params: Params) -> Params:
        """AddTags."""
        tags = {tag["Key"]: tag for tag in self._tags_of(params)}
        tags |= {tag["Key"]: tag for tag in params["Tags"]}
        self._tags[params["ResourceArn"].lower()] = list(tags.values())
        return {"Tags": list(tags.values())}

    def list_tags(self, params: Params) -> Params:
        """ListTags, on one page."""
        return {"Tags": self._tags_of(params)}

    def delete_tags(self, params: Params) -> Params:
        """DeleteTags."""
        kept = [tag for tag in self._tags_of(params) if tag["Key"] not in params["TagKeys"]]
        self._tags[params["ResourceArn"].lower()] = kept
        return {}

    def _tags_of(self, params: Params) -> list[dict[str, Any]]:
        resource = params["ResourceArn"].lower()
        if resource not in self._tags:
            raise invalid(f"Could not find the resource {params['ResourceArn']}.")
        return self._tags[resource]

    def _set_tags(self, arn: str, tags: list[Params] | None) -> None:
        """Called by the records' owners when a resource is made (its tags) or gone (None)."""
        if tags is None:
            self._tags.pop(arn, None)
        else:
            self._tags[arn] = tags
