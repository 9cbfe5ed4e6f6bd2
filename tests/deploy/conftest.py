"""The real CDK command line against an emulator of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.emulator_fixture import ROOT, Emulator, running_emulator
from tools.cdk import cdk

_VARIANT_APP = Path(__file__).with_name("variant_app.py")


@dataclass(frozen=True)
class Cdk:
    """`cdk` as a person types it, for the `local` environment or a variant of one (see `variant_app.py`)."""

    emulator: Emulator
    directory: Path

    def bootstrap(self) -> None:
        """Make the account ready for the CDK. Raises `tools.cdk.CdkError`."""
        # No app: bootstrapping needs none, and the one of cdk.json would be synthesised for it.
        self._run("bootstrap", "aws://000000000000/us-east-1", "--app", "")

    def deploy(self, variant: dict[str, Any] | None = None) -> dict[str, str]:
        """Deploy everything and return the outputs of the endpoints' stack. Raises `tools.cdk.CdkError`."""
        outputs = self.directory / "outputs.json"
        outputs.unlink(missing_ok=True)
        options = ("--all", "--require-approval", "never", "--outputs-file", str(outputs))
        self._run("deploy", *self._app(variant), *options, variant=variant)
        stacks: dict[str, dict[str, str]] = json.loads(outputs.read_text())
        (found,) = [stack for name, stack in stacks.items() if name.endswith("-endpoints")]
        return found

    def destroy(self, variant: dict[str, Any] | None = None) -> None:
        """Destroy everything. Raises `tools.cdk.CdkError`."""
        self._run("destroy", *self._app(variant), "--all", "--force", variant=variant)

    def log_of(self, command: str) -> Path:
        """What the command line printed when this command ran last."""
        return self.directory / f"{command}.log"

    def _app(self, variant: dict[str, Any] | None) -> list[str]:
        app = ["-c", "env=local"] if variant is None else ["--app", f"python3 {_VARIANT_APP}"]
        return [*app, "--output", str(self.directory / "cdk.out")]

    def _run(self, command: str, *arguments: str, variant: dict[str, Any] | None = None) -> None:
        cdk(
            [command, *arguments],
            environment={
                **self.emulator.environment,
                # The rules were applied to the same templates by the tests of the stacks; they cost seconds.
                "CDK_VALIDATION": "false",
                "PYTHONPATH": str(ROOT),
                "VARIANT": json.dumps(variant),
            },
            log=self.log_of(command),
        )


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that lets everybody do everything."""
    with running_emulator(tmp_path_factory.mktemp("emulator")) as running:
        yield running


@pytest.fixture(scope="session")
def cdk_cli(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Cdk:
    """The command line, aimed at the emulator, bootstrapped as an AWS account is."""
    command_line = Cdk(emulator, tmp_path_factory.mktemp("cdk"))
    command_line.bootstrap()
    return command_line
