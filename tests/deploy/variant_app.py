"""A CDK app for tests: the `local` environment with the changes that the variable VARIANT holds as JSON.

Keys: `environment`, `model`, `endpoint`, each the fields to replace.
"""

import json
import os
from dataclasses import replace

from aws_cdk import App

from stacks.config import LOCAL
from stacks.stage import build

changes = json.loads(os.environ["VARIANT"])
(endpoint,) = LOCAL.endpoints
app = App()
build(
    app,
    replace(
        LOCAL,
        model=replace(LOCAL.model, **changes.get("model", {})),
        endpoints=(replace(endpoint, **changes.get("endpoint", {})),),
        **changes.get("environment", {}),
    ),
)
app.synth()
