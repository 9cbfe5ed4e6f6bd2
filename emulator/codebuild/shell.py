"""One shell for all commands of a build, so that variables, functions and the working directory last between them."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from emulator.processes import Child, Processes

# The names of files with commands arrive on standard input, exit statuses leave on standard output; both are moved
# away, so that the commands see an empty input and the log. After each command the environment is saved.
_LOOP = """
exec 3<&0 4>&1 </dev/null >&2
while IFS= read -r _emulator_command <&3; do
  . "$_emulator_command" 3<&- 4>&-
  _emulator_status=$?
  env -0 >"$_EMULATOR_STATE.new" && mv "$_EMULATOR_STATE.new" "$_EMULATOR_STATE"
  printf '%s\\n' "$_emulator_status" >&4
done
"""
_INTERNAL = ("_emulator_command", "_emulator_status", "_EMULATOR_STATE")
POLL_SECONDS = 0.2


class DeadlineError(Exception):
    """The build's time is up."""


class StoppedError(Exception):
    """The build was stopped."""


class Shell:
    """Runs commands one by one; a command that ends the shell (`exit`) gets its successors a new one.

    The new one has the environment and the working directory that the last complete command left.
    """

    def __init__(
        self, processes: Processes, program: str, *, env: dict[str, str], cwd: Path, scratch: Path, log: Path
    ) -> None:
        self._processes = processes
        self._program = program
        self._env = env
        self._cwd = cwd
        self._log = log
        self._state = scratch / "environment"
        self._command = scratch / "command"
        self._child: Child | None = None
        self._to_shell = self._from_shell = -1

    def run(self, command: str, *, deadline: float, stop: threading.Event) -> int:
        """Exit status of one command. Raises DeadlineError at the (monotonic) deadline, StoppedError on the event."""
        if self._child is None:
            self._start()
        self._command.write_text(command + "\n")
        try:
            os.write(self._to_shell, f"{self._command}\n".encode())
        except BrokenPipeError:
            return self._ended()
        while not select.select([self._from_shell], [], [], POLL_SECONDS)[0]:
            if stop.is_set():
                raise StoppedError
            if time.monotonic() > deadline:
                raise DeadlineError
        answer = os.read(self._from_shell, 64)
        if not answer:
            return self._ended()
        self._remember()
        return int(answer)

    def environment(self) -> dict[str, str]:
        """The exported variables as they are after the last command."""
        return self._env

    def close(self) -> None:
        """End the shell and everything that its commands left running."""
        if self._child is not None:
            os.close(self._to_shell)
            os.close(self._from_shell)
            self._child.stop(grace_seconds=5)
            self._child = None

    def _start(self) -> None:
        commands, self._to_shell = os.pipe()
        self._from_shell, statuses = os.pipe()
        with self._log.open("ab") as output:
            self._child = self._processes.start(
                [self._program, "-c", _LOOP],
                cwd=self._cwd,
                env={**self._env, "_EMULATOR_STATE": str(self._state)},
                output=output,
                stdin=commands,
                stdout=statuses,
            )
        os.close(commands)
        os.close(statuses)

    def _ended(self) -> int:
        """The shell itself has ended, and with it the command."""
        exit_code = self._child.wait() if self._child else 1
        self.close()
        return exit_code if exit_code >= 0 else 128 - exit_code

    def _remember(self) -> None:
        entries = self._state.read_bytes().decode(errors="surrogateescape").split("\0")
        pairs = (entry.partition("=") for entry in entries if entry)
        self._env = {name: value for name, _, value in pairs if name not in _INTERNAL}
        self._cwd = type(self._cwd)(self._env.get("PWD", self._cwd))
