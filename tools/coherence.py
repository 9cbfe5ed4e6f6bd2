"""`make coherence`: JevBench's mini suite against the adapter with one model.

JevBench asks the same thing in other words, orders and types, and counts how often the answers agree as they must. It
does not ask whether they are right.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tools.adapter import running_adapter


def main() -> int:
    """Start the adapter, run the suite, print its tables. Returns the suite's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the GGUF to serve")
    parser.add_argument("--requests-at-once", type=int, default=4)
    given = parser.parse_args()
    # Nothing here is in a hurry: a deadline would only turn a slow machine into missing answers.
    with running_adapter(given.model, SEMIF_DEADLINE_SECONDS="3600") as adapter:
        command = [
            *(str(Path(sys.executable).with_name("jevbench")), "eval", "--url", f"{adapter.url}/v1/systemone"),
            *("--model", "jev-latest", "--name", given.model.stem, "--no-cache", "--verbose"),
            *("--concurrency", str(given.requests_at_once)),
        ]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
