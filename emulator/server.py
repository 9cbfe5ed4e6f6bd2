"""The emulator's process: MiniStack, configured for loopback and extended in process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

from emulator.processes import Processes
from emulator.settings import HOST, REGION, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.aws import Response


KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections, as MiniStack's own command has it


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then end every process that was started."""
    for folder in ("endpoints", "builds", "tmp"):  # what an emulator that was killed has left
        shutil.rmtree(settings.state_dir / folder, ignore_errors=True)
        (settings.state_dir / folder).mkdir()
    # Read by MiniStack when it is imported.
    os.environ |= {
        "GATEWAY_PORT": str(settings.port),
        "BIND_HOST": HOST,
        "MINISTACK_HOST": HOST,
        "MINISTACK_REGION": REGION,
        "LAMBDA_EXECUTOR": "local",
        "IOT_MTLS_ENABLED": "0",
        "NODE_PATH": str(settings.node_path),
        "TMPDIR": str(settings.state_dir / "tmp"),  # where it unpacks functions
        **_enforcement(settings),
    }
    from hypercorn.asyncio import serve as serve_asgi  # type: ignore[import-not-found] # noqa: PLC0415
    from hypercorn.config import Config  # type: ignore[import-not-found] # noqa: PLC0415
    from ministack import app  # noqa: PLC0415 - not before its environment is set

    processes = Processes()

    async def stopping() -> None:
        """Return on a signal, when every process has ended; what they still ask for is answered until then."""
        signalled = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, signalled.set)
        await signalled.wait()
        await asyncio.to_thread(processes.stop_all)

    config = Config()
    config.bind = [f"{HOST}:{settings.port}"]
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.loglevel = "INFO"
    if settings.certificate:
        config.certfile, config.keyfile = str(settings.certificate), str(settings.certificate_key)
    try:
        _extend(settings, processes)
        asyncio.run(serve_asgi(app.app, config, shutdown_trigger=stopping))
    finally:
        processes.stop_all()


def _enforcement(settings: Settings) -> dict[str, str]:
    """MiniStack's settings that enforce IAM. TLS comes with it: the policies of CDK's buckets deny everything else."""
    if settings.certificate is None:
        return {}
    from emulator.tls import make_certificate  # noqa: PLC0415

    make_certificate(settings.certificate, settings.certificate_key, HOST)
    settings.access_log.write_bytes(b"")
    return {
        "AUTH": "true",
        "USE_SSL": "1",
        "MINISTACK_SSL_CERT": str(settings.certificate),
        "MINISTACK_SSL_KEY": str(settings.certificate_key),
        # For functions, Node's and Python's, whatever the machine has set: they speak to nobody else.
        "NODE_EXTRA_CA_CERTS": str(settings.certificate),
        "AWS_CA_BUNDLE": str(settings.certificate),
    }


def _extend(settings: Settings, processes: Processes) -> None:
    from ministack import app  # noqa: PLC0415
    from ministack.core import router  # noqa: PLC0415

    from emulator import access, gaps  # noqa: PLC0415
    from emulator.autoscaling import AutoScaling  # noqa: PLC0415
    from emulator.cloudformation import resource_types  # noqa: PLC0415
    from emulator.codebuild.service import CodeBuild  # noqa: PLC0415
    from emulator.roles import Roles  # noqa: PLC0415
    from emulator.sagemaker.playground import route_unsigned  # noqa: PLC0415
    from emulator.sagemaker.service import SageMaker  # noqa: PLC0415
    from emulator.workshop import Workshop  # noqa: PLC0415

    roles = Roles(enforced=settings.enforce_iam, access_log=settings.access_log)
    workshop = Workshop(settings, processes, roles)
    sagemaker = SageMaker(workshop)
    scaling = AutoScaling(sagemaker.endpoints)
    router.SERVICE_PATTERNS["sagemaker"] = {"target_prefixes": ["SageMaker."]}
    router.SERVICE_PATTERNS["application-autoscaling"] = {"target_prefixes": ["AnyScaleFrontendService."]}
    app.SERVICE_HANDLERS["sagemaker"] = _off_loop(sagemaker.handle)
    app.SERVICE_HANDLERS["application-autoscaling"] = _off_loop(scaling.handle)
    gaps.register_types(resource_types(sagemaker, scaling))
    gaps.close(roles)
    if settings.enforce_iam:
        access.name_resources()
        access.record_decisions(roles)
        access.RegistryGate(roles).install()
    route_unsigned(app)
    CodeBuild(workshop).install()


def _off_loop(handle: Callable[..., Response]) -> Callable[..., Any]:
    """MiniStack's form of a handler; on a thread, since an operation may call the emulator back or take a minute."""
    from ministack.core.concurrency import run_reentrant  # noqa: PLC0415

    async def handler(method: str, path: str, headers: dict[str, str], body: bytes, _query: dict[str, Any]) -> Response:
        response: Response = await run_reentrant(handle, method, path, headers, body)
        return response

    return handler
