"""`make synth`: the CloudFormation templates of one environment in cdk.out/."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tools.cdk import CdkError, cdk
from tools.setup import ROOT


def main() -> int:
    """Synthesise the environment that the one argument names. Returns the exit status."""
    (name,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        try:
            cdk(["synth", "--all", "--quiet", "-c", f"env={name}"], environment={}, log=Path(place) / "synth.log")
        except CdkError as error:
            print(f"synth: {error}", file=sys.stderr)
            return 1
    for template in sorted((ROOT / "cdk.out").glob(f"*-{name}-*.template.json")):
        print(template.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
