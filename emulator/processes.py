"""Starts and ends every process of the emulator, each in a process group of its own, so that none is ever left over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL: what SageMaker gives a container


class Child:
    """A started process and its group."""

    def __init__(self, popen: subprocess.Popen[bytes], owner: Processes) -> None:
        self._popen = popen
        self._owner = owner
        self.pid = popen.pid

    def exit_code(self) -> int | None:
        """None while the process runs; negative is the signal that ended it."""
        return self._popen.poll()

    def wait(self) -> int:
        """Block until the process itself has ended; its group may still hold others until `stop`."""
        return self._popen.wait()

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End the whole group: SIGTERM, SIGKILL to what is left when the process is gone or the time is up."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(grace_seconds)
        self.signal(signal.SIGKILL)
        self._popen.wait()
        self._owner.forget(self)

    def signal(self, signum: int) -> None:
        """Send a signal to the whole group; nothing happens when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signum)


class Processes:
    """All running children, and the guard that ends them should the emulator be killed."""

    def __init__(self) -> None:
        self._children: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it before it has done its work
        )

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        output: IO[bytes],
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> Child:
        """Start a process in a new session, its output going to an open file, but for what descriptors are given.

        Raises OSError when the program cannot be started, RuntimeError once the emulator is stopping.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the emulator is stopping")
            popen: subprocess.Popen[Any] = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=dict(env),
                stdin=stdin,
                stdout=output if stdout is None else stdout,
                stderr=output,
                start_new_session=True,
            )
            self._tell_guard(f"+{popen.pid}")
            child = Child(popen, self)
            self._children.add(child)
            return child

    def forget(self, child: Child) -> None:
        """A group has ended."""
        with self._lock:
            if child in self._children:
                self._children.remove(child)
                self._tell_guard(f"-{child.pid}")

    def stop_all(self) -> None:
        """End every child, all at once, and then the guard. Nothing can be started afterwards."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            child.signal(signal.SIGTERM)
        threads = [threading.Thread(target=child.stop) for child in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._guard.stdin:
            self._guard.stdin.close()
        self._guard.wait()

    def _tell_guard(self, line: str) -> None:
        if self._guard.stdin:
            self._guard.stdin.write(line + "\n")
            self._guard.stdin.flush()
