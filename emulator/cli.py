"""The emulator's command line: start in the background, stop, status, run in the foreground."""

from __future__ import annotations

import argparse
import fcntl
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

from emulator.settings import DEFAULT_PORT, HOST, REPOSITORY, Settings

START_SECONDS = 60.0
STOP_SECONDS = 45.0  # more than the 30 s that a container gets to end by itself
NOT_RUNNING = 3  # the exit status that init scripts use for "not running"


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done (or running), 1 with one line on stderr, 3 when `status` finds nothing running."""
    parser = argparse.ArgumentParser(prog="python -m emulator", description=__doc__)
    parser.add_argument("command", choices=["start", "stop", "status", "run"])
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"port on {HOST} (default {DEFAULT_PORT})")
    parser.add_argument("--state-dir", type=Path, default=Path(".emulator"), help="state and logs (default .emulator)")
    parser.add_argument("--enforce-iam", action="store_true", help="decide by IAM policies, over TLS")
    options = parser.parse_args(argv)
    settings = Settings.from_environment(options.port, options.state_dir, enforce_iam=options.enforce_iam)
    commands = {"start": _start, "stop": _stop, "status": _status, "run": _run}
    return commands[options.command](settings)


def _run(settings: Settings) -> int:
    from emulator import server  # noqa: PLC0415 - imports MiniStack, which the other commands do without

    if problem := _cannot_start(settings):
        return _fail(problem)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    # Held open, and so locked, until the process ends: a lock outlives no process, a pid in a file does.
    with settings.pid_file.open("a+") as pid_file:
        try:
            fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _fail(f"an emulator already runs from {settings.state_dir}")
        pid_file.truncate(0)
        pid_file.write(f"{os.getpid()} {settings.url}\n")
        pid_file.flush()
        server.serve(settings)
    return 0


def _start(settings: Settings) -> int:
    running = _running(settings)
    if running and running[1] == settings.url:
        print(f"the emulator already runs at {settings.url}")
        return 0
    if problem := _cannot_start(settings):
        return _fail(problem)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with settings.log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "emulator", "run"),
                *("--port", str(settings.port), "--state-dir", str(settings.state_dir)),
                *(["--enforce-iam"] if settings.enforce_iam else []),
            ],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(settings):
        if process.poll() is not None:
            lines = settings.log_file.read_text(errors="replace").splitlines() or ["no output"]
            return _fail(f"the emulator ended while starting (see {settings.log_file}): {lines[-1]}")
        if time.monotonic() > deadline:
            process.terminate()
            return _fail(f"the emulator was not healthy after {START_SECONDS:.0f} s, see {settings.log_file}")
        time.sleep(0.1)
    print(f"the emulator runs at {settings.url}, log {settings.log_file}")
    return 0


def _stop(settings: Settings) -> int:
    running = _running(settings)
    if running is None:
        print("the emulator does not run")
        return 0
    pid = running[0]
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _running(settings):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)  # its guard ends what it leaves
            return _fail(f"the emulator (process {pid}) did not end in {STOP_SECONDS:.0f} s and was killed")
        time.sleep(0.1)
    print("the emulator has stopped")
    return 0


def _status(settings: Settings) -> int:
    running = _running(settings)
    if running is None:
        print("the emulator does not run")
        return NOT_RUNNING
    print(f"the emulator runs at {running[1]} (process {running[0]}), log {settings.log_file}")
    return 0


def _running(settings: Settings) -> tuple[int, str] | None:
    """Process id and address of the emulator that holds the lock in this state folder."""
    try:
        with settings.pid_file.open() as pid_file:
            try:
                fcntl.flock(pid_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, _, url = pid_file.read().strip().partition(" ")
                return (int(pid), url) if url else None
    except FileNotFoundError:
        pass
    return None


def _cannot_start(settings: Settings) -> str | None:
    running = _running(settings)
    if running:
        return f"an emulator already runs from {settings.state_dir} at {running[1]}: stop it first"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, settings.port))
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            return f"port {settings.port} on {HOST} cannot be used ({reason}): choose another with --port"
    return None


def _healthy(settings: Settings) -> bool:
    if _running(settings) is None:  # something else could have taken the port meanwhile
        return False
    try:
        connection = _connection(settings)
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):  # no certificate yet is one of them
        return False


def _connection(settings: Settings) -> http.client.HTTPConnection:
    if settings.certificate is None:
        return http.client.HTTPConnection(HOST, settings.port, timeout=5)
    trusted = ssl.create_default_context(cafile=settings.certificate)
    return http.client.HTTPSConnection(HOST, settings.port, timeout=5, context=trusted)


def _fail(message: str) -> int:
    print(f"emulator: {message}", file=sys.stderr)
    return 1
