"""Carries a process's output from its log file to CloudWatch Logs while it is written."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from pathlib import Path

    from emulator.clients import Clients

POLL_SECONDS = 0.3
MAX_EVENTS = 1000  # per call; CloudWatch Logs takes 10,000 and 1 MiB
MAX_LINE = 8192  # characters


class LogFollower:
    """One log file and the stream that receives its lines; group and stream are created when absent, as AWS does.

    What the clients' role may not do is not done: the lines then stay in the file.
    """

    def __init__(self, clients: Clients, path: Path, group: str, stream: str) -> None:
        self._clients = clients
        self._path = path
        self._group = group
        self._stream = stream
        self._offset = 0
        self._stopping = threading.Event()
        self._opened = threading.Event()
        self._refusal: str | None = None
        self._thread = threading.Thread(target=self._follow, name=f"logs {stream}", daemon=True)
        path.touch()
        self._thread.start()

    def stop(self) -> None:
        """Return once everything written so far has been delivered."""
        self._stopping.set()
        self._thread.join()

    def refusal(self) -> str | None:
        """Block until there is a stream, or the reason why there is none; returns that reason."""
        self._opened.wait()
        return self._refusal

    def _follow(self) -> None:
        try:
            self._open()
        except ClientError as error:
            self._refusal = str(error)
            return
        finally:
            self._opened.set()
        while not self._stopping.wait(POLL_SECONDS):
            self._deliver(whole_lines=True)
        self._deliver(whole_lines=False)

    def _open(self) -> None:
        logs = self._clients.logs
        stream = {"logGroupName": self._group, "logStreamName": self._stream}
        try:
            logs.create_log_stream(**stream)
        except logs.exceptions.ResourceAlreadyExistsException:
            """A stream of this name is there."""
        except logs.exceptions.ResourceNotFoundException:
            with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
                logs.create_log_group(logGroupName=self._group)
            logs.create_log_stream(**stream)

    def _deliver(self, *, whole_lines: bool) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        if whole_lines:
            text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
        now = int(time.time() * 1000)
        for start in range(0, len(lines), MAX_EVENTS):
            events = [{"timestamp": now, "message": line[:MAX_LINE]} for line in lines[start : start + MAX_EVENTS]]
            try:
                self._clients.logs.put_log_events(
                    logGroupName=self._group,
                    logStreamName=self._stream,
                    logEvents=events,  # type: ignore[arg-type]
                )
            except ClientError:
                return  # someone deleted the group, or the right to write to it: the file still has the lines
