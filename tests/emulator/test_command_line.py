"""`python -m emulator`: starting, stopping, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.emulator.conftest import Docker, Hosting, is_running, push_image, wait_for
from tests.emulator_fixture import Emulator, free_port, running_emulator


def test_port_in_use_ends_with_one_line_that_names_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = Emulator(port, tmp_path).command("start")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr


def test_start_status_stop(tmp_path: Path) -> None:
    emulator = Emulator(free_port(), tmp_path)
    assert emulator.command("status").returncode == 3
    with running_emulator(tmp_path / "state") as emulator:
        assert emulator.endpoint_url in emulator.command("status").stdout
        assert emulator.command("start").returncode == 0, "starting what runs already is no error"
        identity = emulator.client("sts").get_caller_identity()
        assert identity["Account"] == "000000000000"
        other = Emulator(free_port(), emulator.state_dir).command("start")
        assert other.returncode == 1
        assert "already runs" in other.stderr
    assert emulator.command("status").returncode == 3


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_emulator(tmp_path: Path, how: signal.Signals) -> None:
    with running_emulator(tmp_path / "state") as emulator:
        docker = Docker(emulator, tmp_path)
        emulator.client("s3").create_bucket(Bucket="models")
        emulator.client("s3").put_object(Bucket="models", Key="one/weights.txt", Body=b"x")
        hosting = Hosting(emulator, push_image(docker, "server"))
        endpoint = hosting.endpoint(hosting.config())
        container = hosting.invoke(endpoint)["Body"]["pid"]
        request = threading.Thread(target=hosting.ask_for_a_minute, args=(endpoint,), daemon=True)
        request.start()
        codebuild = emulator.client("codebuild")
        # The inner sleep is a grandchild in the build's process group.
        marker = tmp_path / "pid"
        _build_project(codebuild, f"bash -c 'sleep 300 & echo $! > {marker}; wait'")
        codebuild.start_build(projectName="sleeper")
        wait_for(lambda: marker.exists() and marker.read_text().endswith("\n"))
        sleeper = int(marker.read_text())
        pid = int((emulator.state_dir / "emulator.pid").read_text().split()[0])
        os.kill(pid, how)
        # Sooner than the request's end would come by itself.
        wait_for(lambda: not any(is_running(process) for process in (pid, container, sleeper)), seconds=45)


def _build_project(codebuild: object, command: str) -> None:
    buildspec = f'{{"version": "0.2", "phases": {{"build": {{"commands": ["{command}"]}}}}}}'
    codebuild.create_project(  # type: ignore[attr-defined]
        name="sleeper",
        source={"type": "NO_SOURCE", "buildspec": buildspec},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
        serviceRole="arn:aws:iam::000000000000:role/build",
    )
