"""Whose a thing in the account is: by its tags, or by a name that only one environment can have."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ops.deployed import artifacts_name, endpoints_name
from stacks.config import PREFIX, Environment

# Region codes as in ARNs and dashboards.
_REGION = re.compile(r"\b[a-z]{2}(?:-[a-z]+){1,2}-\d\b")


def belongs(environment: Environment, name: str, tags: Mapping[str, str]) -> bool:
    """Whether a thing that a stack made is the environment's.

    The tags that stacks/stage.py gives decide where there are any: CloudFormation cuts long names, and `staging` and
    `stag` may then look alike. Without them its name has to begin with that of one of the environment's stacks, and
    what follows to be apart from it: `dev` is no part of `dev2`.
    """
    if "project" in tags:
        return (tags["project"], tags.get("environment")) == (PREFIX, environment.name)
    stacks = "|".join(map(re.escape, (artifacts_name(environment), endpoints_name(environment))))
    # CloudFormation's generated names, and the log groups that AWS makes for the things so named.
    return re.fullmatch(rf"(?:/aws/(?:lambda|codebuild|cloudformation)/)?(?:{stacks})[-/].+", name) is not None


def is_of_endpoint(environment: Environment, name: str) -> bool:
    """Whether the name is that of one of the environment's endpoints, which its stack need not know any more.

    Or that of an endpoint's log group, of its scaling target, or of the alarms that scaling makes for this.
    """
    endpoint = rf"{PREFIX}-{environment.name}-[a-z0-9-]+"
    pattern = rf"(?:/aws/sagemaker/Endpoints/)?{endpoint}|(?:TargetTracking-)?endpoint/{endpoint}/variant/.+"
    return re.fullmatch(pattern, name) is not None


def is_of_another_region(document: str, region: str) -> bool:
    """Whether a document, such as a role's policy, speaks of regions, and not of this one.

    Roles, policies and dashboards are the account's, not a region's: an environment of the same name in another region
    has its own.
    """
    named = set(_REGION.findall(document))
    return bool(named) and region not in named
