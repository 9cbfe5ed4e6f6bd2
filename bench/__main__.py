"""`make bench`: the scoring engine against the plain path, as a table and as bench/results/engine.json.

QUICK=1 takes smaller workloads, and a small hybrid in place of the 0.8B shape. Each model is measured in a process of
its own, so that peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "container"))

from rich.console import Console  # noqa: E402 - the path above first
from rich.table import Table  # noqa: E402

from bench.measure import measure  # noqa: E402
from tests.models.make_models import model_path  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "engine.json"
MODELS = ("embedded", "qwen35-0.8b-q4_k_m")
QUICK_MODELS = ("embedded", "small-hybrid-q4_k_m")


def main() -> int:
    """Measure every model; 1 where a target is missed."""
    arguments = _parse()
    if arguments.child:
        name = arguments.models[0]
        result = measure(
            model_path(name),
            name,
            threads=arguments.threads,
            gpu_layers=arguments.gpu_layers,
            runs=arguments.runs,
            quick=arguments.quick,
        )
        print(json.dumps(result))
        return 0
    results = {name: _in_a_process(name, arguments) for name in arguments.models}
    verdicts = [verdict for result in results.values() for verdict in result["verdicts"]]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([verdict["row"] for verdict in verdicts], indent=1))
    _print(results)
    return 0 if all(verdict["met"] for verdict in verdicts) else 1


def _parse() -> argparse.Namespace:
    quick = os.environ.get("QUICK", "") not in {"", "0"}
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    models = QUICK_MODELS if quick else MODELS
    parser.add_argument("models", nargs="*", default=models, help=f"default: {' '.join(models)}")
    parser.add_argument("--quick", action="store_true", default=quick)
    parser.add_argument("--runs", type=int, default=1 if quick else 3, help="pairs for each workload")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_a_process(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench", name, "--child", "--runs", str(arguments.runs)]
    command += ["--threads", str(arguments.threads), "--gpu-layers", str(arguments.gpu_layers)]
    command += ["--quick"] if arguments.quick else []
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _print(results: dict[str, dict[str, Any]]) -> None:
    console = Console(width=max(150, Console().width))
    for name, result in results.items():
        table = Table(title=f"{name} on {result['device']}: peak memory {result['peak_bytes'] / 1e6:,.0f} MB")
        for heading in (
            "workload",
            "plain s",
            "ours s",
            "times",
            "plain tokens",
            "ours",
            "share",
            "spread",
            "target",
            "",
        ):
            table.add_column(heading, justify="left" if heading in {"workload", "target", ""} else "right")
        for verdict in result["verdicts"]:
            row = verdict["row"]
            table.add_row(
                row["workload"],
                f"{row['plain_seconds']:.2f}",
                f"{row['ours_seconds']:.2f}",
                f"{1 / row['ratio_seconds']:.1f}",
                f"{row['plain_tokens']:,}",
                f"{row['ours_tokens']:,}",
                f"{row['ratio_tokens']:.3f}",
                f"{row['spread']:.2f}",
                verdict["target"],
                ("met" if verdict["met"] else "MISSED") + (f"; {verdict['note']}" if verdict["note"] else ""),
            )
        console.print(table)
        console.print(f"exactness: {result['exactness']}\n")


if __name__ == "__main__":
    sys.exit(main())
