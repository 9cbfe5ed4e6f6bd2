"""The CDK app: reads the environment's name and builds its stage."""

import sys

from aws_cdk import App

from stacks.config import ConfigError, environment_named
from stacks.stage import build


def main() -> None:
    """Synthesise the environment that `-c env=NAME` names; one line and exit code 1 where the name is none."""
    app = App()
    try:
        environment = environment_named(app.node.try_get_context("env"))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    build(app, environment)
    app.synth()


if __name__ == "__main__":
    main()
