"""ARNs, and the list operations' common parameters."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from emulator.aws import Params, invalid
from emulator.settings import ACCOUNT, REGION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_MAX_RESULTS = 10  # what the List operations of SageMaker answer when not told otherwise


def arn(kind: str, name: str) -> str:
    """SageMaker's ARNs carry names in lower case."""
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}/{name.lower()}"


def now() -> datetime:
    """The current time, as records keep it."""
    return datetime.now(timezone.utc)


def page(params: Params, summaries: Iterable[Params], name_key: str) -> tuple[list[Params], Params]:
    """Filter, sort and cut summaries as a List operation's parameters ask; also returns `{"NextToken": ...}` or {}."""
    contains = params.get("NameContains", "").lower()
    chosen = [item for item in summaries if contains in item[name_key].lower() and _in_time(params, item)]
    if status := params.get("StatusEquals"):
        chosen = [item for item in chosen if item["EndpointStatus"] == status]
    sort_keys: Mapping[str, Any] = {"Name": name_key, "Status": "EndpointStatus"}
    key = sort_keys.get(params.get("SortBy", "CreationTime"), "CreationTime")
    chosen.sort(key=lambda item: item[key], reverse=params.get("SortOrder", "Descending") == "Descending")
    try:
        start = int(params.get("NextToken", "0"))
    except ValueError:
        raise invalid("the NextToken is not one that this operation returned") from None
    end = start + params.get("MaxResults", DEFAULT_MAX_RESULTS)
    return chosen[start:end], ({"NextToken": str(end)} if end < len(chosen) else {})


def _in_time(params: Params, item: Params) -> bool:
    for prefix, member in (("CreationTime", "CreationTime"), ("LastModifiedTime", "LastModifiedTime")):
        after, before = params.get(f"{prefix}After"), params.get(f"{prefix}Before")
        if after is not None and item[member].timestamp() <= after:
            return False
        if before is not None and item[member].timestamp() >= before:
            return False
    return True
