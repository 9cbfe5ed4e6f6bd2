"""`make demo` and `make destroy-demo`: the `local` environment on the embedded AWS emulator."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.table import Table

from tools.cdk import CdkError, cdk
from tools.leftovers import leftovers
from tools.setup import EMULATOR_VENV, ROOT, VENV

ENVIRONMENT = "local"
STATE = ROOT / ".emulator"
OUTPUTS = STATE / "outputs.json"
DEFAULT_PORT = 4566

EXAMPLE = {
    "decision": {
        "id": "support-route",
        "state": "Customer asks to reset a forgotten password and says the reset email never arrived.",
        "question": "Which queue should handle this request?",
        "options": [
            {"id": "account_access", "description": "Account access and authentication support."},
            {"id": "billing", "description": "Billing and payment support."},
            {"id": "sales", "description": "Sales and product evaluation."},
        ],
    }
}


class DemoError(Exception):
    """The demo cannot go on; the message is one line."""


class Demo:
    """One emulator on one port, and the `local` environment in it."""

    def __init__(self, port: int, console: Console) -> None:
        self._port = port
        self._console = console
        self._url = f"http://127.0.0.1:{port}"
        self._started_emulator = False

    def up(self) -> None:
        """Start, bootstrap, deploy, decide.

        Raises `DemoError`. An emulator that this call started and cannot use is stopped again.
        """
        self._start_emulator()
        try:
            self._bootstrap()
            self._deploy()
            self._decide()
        except BaseException:
            if self._started_emulator:
                self._emulator("stop")
            raise

    def down(self) -> None:
        """Destroy the environment, check that nothing of ours is left, stop the emulator. Raises `DemoError`."""
        if self._emulator("status").returncode != 0:
            self._console.print("The emulator is not running: there is nothing to destroy.")
            return
        self._cdk(
            f"destroying environment {ENVIRONMENT!r} (cdk destroy)",
            ["destroy", "--all", "--force", "-c", f"env={ENVIRONMENT}"],
        )
        if left := leftovers(self._url):
            raise DemoError("cdk destroy left behind: " + ", ".join(left))
        self._console.print(
            "The emulator is empty: no stacks, buckets, repositories, images, log groups, models, configurations, "
            "endpoints, roles or scaling targets of ours."
        )
        self._emulator("stop", check=True)
        OUTPUTS.unlink(missing_ok=True)

    def _start_emulator(self) -> None:
        if self._emulator("status").returncode == 0:
            self._console.print(f"emulator: already running at {self._url}")
            return
        self._console.print(f"emulator: starting at {self._url}")
        self._emulator("start", check=True)
        self._started_emulator = True

    def _emulator(self, command: str, *, check: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [
                *(EMULATOR_VENV / "bin" / "python", "-m", "emulator", command),
                *("--port", str(self._port), "--state-dir", STATE),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "NODE_PATH": str(ROOT / "node_modules"),
                "EMULATOR_CONTAINER_PYTHON": str(VENV / "bin" / "python"),
                "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise DemoError(f"emulator {command}: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")
        return done

    def _bootstrap(self) -> None:
        cloudformation = self._client("cloudformation")
        try:
            cloudformation.describe_stacks(StackName="CDKToolkit")
        except ClientError:
            self._cdk(
                "bootstrapping the account (cdk bootstrap)",
                ["bootstrap", "aws://000000000000/us-east-1", "--app", ""],
            )

    def _deploy(self) -> None:
        self._cdk(
            f"deploying environment {ENVIRONMENT!r} (cdk deploy; it builds the model artifact and the image)",
            [
                *("deploy", "--all", "--require-approval", "never", "-c", f"env={ENVIRONMENT}"),
                *("--outputs-file", str(OUTPUTS)),
            ],
        )

    def _decide(self) -> None:
        name = self._endpoint_name()
        description = self._client("sagemaker").describe_endpoint(EndpointName=name)
        if description["EndpointStatus"] != "InService":
            reason = description.get("FailureReason", "no reason given")
            raise DemoError(f"endpoint {name} is {description['EndpointStatus']}: {reason}")
        started = time.perf_counter()
        answer = self._client("sagemaker-runtime").invoke_endpoint(
            EndpointName=name, ContentType="application/json", Body=json.dumps(EXAMPLE)
        )
        result = json.loads(answer["Body"].read())["result"]
        self._show(name, result, milliseconds=(time.perf_counter() - started) * 1000)

    def _endpoint_name(self) -> str:
        outputs: dict[str, dict[str, str]] = json.loads(OUTPUTS.read_text())
        names = [value for stack in outputs.values() for key, value in stack.items() if key.endswith("EndpointName")]
        if len(names) != 1:
            raise DemoError(f"environment {ENVIRONMENT!r} has {len(names)} endpoints; the demo needs exactly one")
        return names[0]

    def _show(self, name: str, result: dict[str, Any], *, milliseconds: float) -> None:
        decision = EXAMPLE["decision"]
        table = Table(title=f"{decision['question']}", title_justify="left")
        table.add_column("option")
        table.add_column("probability", justify="right")
        table.add_column("logit", justify="right")
        likeliest = max(result["probabilities"])
        rows = zip(result["option_ids"], result["probabilities"], result["option_logits"], strict=True)
        for option, probability, logit in rows:
            style = "bold" if probability == likeliest else None
            table.add_row(option, f"{probability:.4f}", f"{logit:.3f}", style=style)
        show = self._console.print
        show()
        show(f"endpoint [bold]{name}[/bold] is InService and has answered:")
        show(f"  state: {decision['state']}")
        show(table)
        show(f"  option mass    {result['allowed_token_mass']:.4f} (probability of the options among all tokens)")
        show(f"  prompt         {result['prompt_version']}, {result['input_tokens']} tokens")
        show(f"  prompt sha256  {result['prompt_sha256']}")
        show(f"  milliseconds   {milliseconds:.0f} in all, {result['forward_seconds'] * 1000:.0f} of them in the model")
        show(f"  model          {result['model']['name']}, {result['model']['library_version']}")
        show()
        show("The embedded 135M model proves the pipeline; it does not decide well.")
        show()
        show("What to do next:")
        show(f"  try it      {self._url}/endpoints/{name}/ in a browser")
        show(
            f"  ask it      AWS_ENDPOINT_URL={self._url} AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test "
            "AWS_DEFAULT_REGION=us-east-1, then "
            f"boto3.client('sagemaker-runtime').invoke_endpoint(EndpointName='{name}', ...)",
        )
        show(f"  address     POST {self._url}/endpoints/{name}/invocations")
        show("  take down   make destroy-demo" + ("" if self._port == DEFAULT_PORT else f" PORT={self._port}"))

    def _cdk(self, title: str, arguments: list[str]) -> None:
        self._console.print(title)
        started = time.perf_counter()
        log = STATE / f"cdk-{arguments[0]}.log"
        try:
            with self._console.status("") as status:
                cdk(
                    arguments,
                    environment=self._aws_environment(),
                    log=log,
                    on_line=lambda line: status.update(line.strip()[:100]),
                )
        except CdkError as error:
            raise DemoError(f"{error} (all of it: {log.relative_to(ROOT)})") from error
        self._console.print(f"  done in {time.perf_counter() - started:.0f} s")

    def _aws_environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self._url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            # The rules of `make synth` and the tests, which cost seconds, were applied to the same templates there.
            "CDK_VALIDATION": "false",
        }

    def _client(self, service: str) -> Any:
        return boto3.client(  # type: ignore[call-overload] # the service's name is a variable
            service,
            endpoint_url=self._url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - the emulator's
            config=Config(read_timeout=70, retries={"max_attempts": 0}),
        )


def main() -> int:
    """Run `up` or `down`. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="the emulator's port on 127.0.0.1")
    arguments = parser.parse_args()
    STATE.mkdir(exist_ok=True)
    demo = Demo(arguments.port, Console(highlight=False, soft_wrap=True))
    try:
        if arguments.command == "up":
            demo.up()
        else:
            demo.down()
    except (DemoError, BotoCoreError, ClientError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
