"""The CDK app: reads the environment's name and builds its stage, or the pipeline that deploys stages."""

import sys

from aws_cdk import App

from stacks.checks import ConfigError
from stacks.config import configured_pipeline, environment_named
from stacks.stage import build, build_pipeline


def main() -> None:
    """Synthesise the environment that `-c env=NAME` names, or with `-c pipeline=yes` the pipeline.

    One line and exit code 1 where there is no such thing.
    """
    app = App()
    try:
        if app.node.try_get_context("pipeline"):
            build_pipeline(app, configured_pipeline())
        else:
            build(app, environment_named(app.node.try_get_context("env")))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    app.synth()


if __name__ == "__main__":
    main()
