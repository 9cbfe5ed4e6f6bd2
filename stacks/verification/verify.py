"""Asks endpoints for a real answer, as their callers do; exits with 1 where one does not come or is wrong.

Runs inside CodeBuild after a deploy, with no right but to invoke; needs Python and the AWS command line alone.
ENDPOINTS is a JSON list of {"name", "kind": "decision" | "text", "model_sha256"}.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Obvious to any model that can decide at all.
DECISION: dict[str, Any] = {
    "id": "verification",
    "state": "Customer asks to reset a forgotten password and says the reset email never arrived.",
    "question": "Which queue should handle this request?",
    "options": [
        {"id": "account_access", "description": "Account access and authentication support."},
        {"id": "billing", "description": "Billing and payment support."},
        {"id": "sales", "description": "Sales and product evaluation."},
    ],
}
EXPECTED = "account_access"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}

# A busy endpoint refuses; half a minute later it may not.
ATTEMPTS = 5
PAUSE_SECONDS = 30.0


class WrongAnswerError(Exception):
    """An endpoint answered, but not as it should; the message says what is wrong."""


class NoAnswerError(Exception):
    """An endpoint did not answer; the message is the command line's own."""


def main() -> int:
    """Verify every endpoint. Returns the exit status."""
    pause = float(os.environ.get("PAUSE_SECONDS", PAUSE_SECONDS))
    wrong = 0
    for endpoint in json.loads(os.environ["ENDPOINTS"]):
        try:
            print(f"{endpoint['name']}: {verify(endpoint, pause_seconds=pause)}", flush=True)
        except (NoAnswerError, WrongAnswerError) as error:
            print(f"{endpoint['name']}: {error}", file=sys.stderr, flush=True)
            wrong += 1
    return 1 if wrong else 0


def verify(endpoint: dict[str, str], *, pause_seconds: float) -> str:
    """One line about the endpoint's answer. Raises `NoAnswerError`, `WrongAnswerError`."""
    decides = endpoint["kind"] == "decision"
    answer = invoke(endpoint["name"], {"decision": DECISION} if decides else CHAT, pause_seconds=pause_seconds)
    return check_decision(answer, endpoint["model_sha256"]) if decides else check_chat(answer)


def invoke(name: str, body: dict[str, Any], *, pause_seconds: float) -> dict[str, Any]:
    """The endpoint's answer to the body. Raises `NoAnswerError` when it has been asked often enough."""
    with tempfile.TemporaryDirectory() as place:
        question, answer = Path(place) / "question.json", Path(place) / "answer.json"
        question.write_text(json.dumps(body))
        command = ["aws", "sagemaker-runtime", "invoke-endpoint", "--endpoint-name", name]
        command += ["--content-type", "application/json", "--body", f"fileb://{question}", str(answer)]
        for attempt in range(1, ATTEMPTS + 1):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found: dict[str, Any] = json.loads(answer.read_text())
                return found
            print(f"{name}: attempt {attempt} of {ATTEMPTS}: {done.stderr.strip()}", file=sys.stderr, flush=True)
            if attempt < ATTEMPTS:
                time.sleep(pause_seconds)
    raise NoAnswerError(f"no answer: {done.stderr.strip()}")


def check_decision(answer: dict[str, Any], model_sha256: str) -> str:
    """One line about a decision that is right and comes from the intended model. Raises `WrongAnswerError`."""
    result = answer.get("result")
    if not isinstance(result, dict):
        raise WrongAnswerError(f"the answer has no result: {answer}")
    options = [option["id"] for option in DECISION["options"]]
    if (result["id"], result["option_ids"]) != (DECISION["id"], options):
        raise WrongAnswerError(f"another decision is answered: {result['id']}, {result['option_ids']}")
    # A deployment that was rolled back leaves the old model in service, and looks well from outside.
    served = result["model"]["gguf_sha256"]
    if served != model_sha256:
        raise WrongAnswerError(f"the model that serves has SHA-256 {served}, the intended one {model_sha256}")
    probabilities = dict(zip(options, result["probabilities"], strict=True))
    if not math.isclose(sum(probabilities.values()), 1, abs_tol=1e-6):
        raise WrongAnswerError(f"the probabilities do not sum to 1: {probabilities}")
    likeliest = max(probabilities, key=probabilities.__getitem__)
    if likeliest != EXPECTED:
        raise WrongAnswerError(f"{likeliest!r} is the likeliest option, not {EXPECTED!r}: {probabilities}")
    return f"{likeliest} with {probabilities[likeliest]:.3f}"


def check_chat(answer: dict[str, Any]) -> str:
    """One line about a chat completion that says something. Raises `WrongAnswerError`."""
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise WrongAnswerError(f"the answer is no chat completion: {answer}") from None
    if not isinstance(text, str) or not text.strip():
        raise WrongAnswerError("the chat completion is empty")
    return f"{len(text)} characters of text"


if __name__ == "__main__":
    sys.exit(main())
