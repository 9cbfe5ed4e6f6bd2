"""The command `decide doctor`: runs all checks at once and shows their rows in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

import typer
from botocore.exceptions import BotoCoreError

from ops.aws import Aws, connect
from ops.doctor import account, downloads, machine, quotas
from ops.doctor.row import Check, Row, Verdict
from ops.errors import FAILED
from ops.options import EndpointUrl, EnvironmentName, Json, environment
from ops.output import say, show_json, show_table
from ops.prices import PRICE_LIST_ACTION, PRICE_LIST_REGION
from stacks.config import Environment
from stacks.images import DLC_ACCOUNTS

_WORKERS = 8
# Service Quotas and the price list answer few requests a second.
_ATTEMPTS = 6


def doctor(env: EnvironmentName, *, endpoint_url: EndpointUrl = None, as_json: Json = False) -> None:
    """Whether an environment will deploy from here: what is missing, and what to do about it. Reads only.

    Checks this machine's tools, the credentials, account and region, CDK's bootstrap, quota for every instance type
    while an update runs, whether the region has the types and the pinned base images, and the model's download. A check
    that the credentials may not make names the permission; the others go on. Exit status 1 where a check failed.

    Example: decide doctor dev
    """
    of = environment(env)
    rows = examine(of, endpoint_url)
    if as_json:
        show_json({"environment": of.name, "ready": not _failed(rows), "checks": [asdict(row) for row in rows]})
    else:
        _show(of, rows)
    if _failed(rows):
        raise typer.Exit(FAILED)


def examine(of: Environment, endpoint_url: str | None) -> list[Row]:
    """All rows for the environment; without usable credentials AWS is not asked any further.

    Raises UsageError for an address that is none.
    """
    checks = list(_local_checks(of))
    emulator = False
    try:
        aws = connect(of, endpoint_url)
    except BotoCoreError as error:
        who = account.no_identity(error)
        rows = [*who.rows]
    else:
        emulator = aws.is_emulator
        who = account.identity(aws.client("sts"), of, emulator=emulator)
        rows = [*who.rows, *account.region(aws.region)]
        if who.account is not None:
            checks = [*_aws_checks(of, aws, who.account), *checks]
    if who.account is None:
        rows.append(Row("bootstrap, quotas, types, images", "AWS cannot be asked without the above", "not checked"))
    with ThreadPoolExecutor(_WORKERS) as pool:
        for found in pool.map(lambda check: check.rows(emulator=emulator), checks):
            rows += found
    return rows


def _aws_checks(of: Environment, aws: Aws, account_id: str) -> Iterator[Check]:
    # Clients are made here, one after the other: a session is not safe to share between threads, its clients are.
    ssm = aws.client("ssm")
    yield Check(
        "CDK bootstrap",
        f"ssm:GetParameter on {account.BOOTSTRAP_PARAMETER}",
        partial(account.bootstrap, ssm, account_id, aws.region, emulator=aws.is_emulator),
    )
    service_quotas, sagemaker = aws.client("service-quotas", attempts=_ATTEMPTS), aws.client("sagemaker")
    yield Check(
        "quotas",
        "servicequotas:ListServiceQuotas and servicequotas:ListAWSDefaultServiceQuotas",
        partial(quotas.check, service_quotas, sagemaker, of, aws.region),
        absent_from_emulator="Service Quotas",
    )
    pricing = aws.client("pricing", attempts=_ATTEMPTS, region=PRICE_LIST_REGION)
    yield Check(
        "types in the region",
        PRICE_LIST_ACTION,
        partial(quotas.offered_rows, pricing, of, aws.region),
        absent_from_emulator="price list, by which a region's types are told",
    )
    if aws.region in DLC_ACCOUNTS:
        ecr = aws.client("ecr")
        images = {"GPU" if e.on_gpu else "CPU": None for e in of.endpoints}
        for kind in images:
            image = of.base_images.gpu if kind == "GPU" else of.base_images.cpu
            yield Check(
                f"base image ({kind})",
                account.base_image_action(aws.region, image),
                partial(account.base_image, ecr, kind, image, aws.region),
                absent_from_emulator="registry of Deep Learning Containers",
            )


def _local_checks(of: Environment) -> Iterator[Check]:
    yield Check("model", "", partial(downloads.model, of.model))
    if of.model.tokenizer is not None:
        yield Check("tokenizer", "", partial(downloads.tokenizer, of.model.tokenizer))
    for model in downloads.hub_models(of):
        yield Check("hub model", "", partial(downloads.hub_model, model))
    yield Check("Node", "", machine.node)
    yield Check("CDK command line", "", machine.cdk_cli)
    yield Check("Python packages", "", machine.packages)


def _show(of: Environment, rows: Sequence[Row]) -> None:
    show_table(("check", "found", "verdict"), [(row.check, row.found, row.verdict) for row in rows])
    if advised := [row for row in rows if row.advice]:
        say()
        say("What to do:")
        for row in advised:
            say(f"  {row.check}: {row.advice}")
    counts: Counter[Verdict] = Counter(row.verdict for row in rows)
    say()
    ready = "is not ready to deploy" if _failed(rows) else "can be deployed, as far as was checked"
    verdicts: tuple[Verdict, ...] = ("failed", "warning", "not checked", "ok")
    shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if counts[verdict])
    say(f"Environment {of.name!r} {ready}: {shown}.")


def _failed(rows: Sequence[Row]) -> bool:
    return any(row.verdict == "failed" for row in rows)
