"""Ends the emulator's process groups when the emulator is gone, however it went.

Runs as a process of its own. Standard input carries one line per event, `+PGID` or `-PGID`; its end means that the
emulator has died, by SIGKILL too, since the system then closes the pipe.
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_SECONDS = 30.0


def _send(group: int, signum: int) -> bool:
    """Whether the group still exists."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Follow the pipe, then end what is left: SIGTERM, and SIGKILL after the grace period."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    alive = {group for group in groups if _send(group, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE_SECONDS
    while alive and time.monotonic() < deadline:
        time.sleep(0.1)
        alive = {group for group in alive if _send(group, 0)}
    for group in alive:
        _send(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
