"""What the pipeline accepts as an answer; the answers themselves come from endpoints in tests/deploy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from stacks.verification.verify import NoAnswerError, WrongAnswerError, check_chat, check_decision, verify

SHA256 = "ab" * 32
RIGHT: dict[str, Any] = {
    "result": {
        "id": "verification",
        "option_ids": ["account_access", "billing", "sales"],
        "probabilities": [0.8, 0.15, 0.05],
        "model": {"gguf_sha256": SHA256},
    }
}


def test_the_right_answer_of_the_right_model() -> None:
    assert check_decision(RIGHT, SHA256) == "account_access with 0.800"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["result"], None, "the answer has no result"),
        (["result", "id"], "another", "another decision is answered: another"),
        (["result", "option_ids"], ["billing", "account_access", "sales"], "another decision is answered"),
        # A roll-back that nobody was told of.
        (["result", "model", "gguf_sha256"], "cd" * 32, f"the model that serves has SHA-256 {'cd' * 32}"),
        (["result", "probabilities"], [0.8, 0.15, 0.04], "do not sum to 1"),
        (["result", "probabilities"], [0.1, 0.8, 0.1], "'billing' is the likeliest option, not 'account_access'"),
    ],
)
def test_a_wrong_answer_says_what_is_wrong(path: list[str], value: Any, message: str) -> None:
    answer = copy.deepcopy(RIGHT)
    place: Any = answer
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(WrongAnswerError, match=message):
        check_decision(answer, SHA256)


def test_a_text_endpoint_says_something() -> None:
    assert check_chat({"choices": [{"message": {"content": "Hello!"}}]}) == "6 characters of text"
    with pytest.raises(WrongAnswerError, match="is empty"):
        check_chat({"choices": [{"message": {"content": " "}}]})
    others: list[dict[str, Any]] = [{}, {"choices": []}, {"choices": [None]}, {"error": "busy"}]
    for answer in others:
        with pytest.raises(WrongAnswerError, match="no chat completion"):
            check_chat(answer)


def test_an_endpoint_that_is_busy_at_first_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the AWS command line: refuses twice, then writes the answer where the real one does."""
    asked = tmp_path / "asked"
    aws = tmp_path / "aws"
    aws.write_text(
        f"""#!/bin/sh
echo "$@" >> {asked}
if [ "$(wc -l < {asked})" -lt "$REFUSALS" ]; then echo "503 busy" >&2; exit 254; fi
for last; do :; done
cat > "$last" <<'ANSWER'
{json.dumps(RIGHT)}
ANSWER
"""
    )
    aws.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    endpoint = {"name": "support", "kind": "decision", "model_sha256": SHA256}
    monkeypatch.setenv("REFUSALS", "3")
    assert verify(endpoint, pause_seconds=0).startswith("account_access")
    calls = asked.read_text().splitlines()
    assert len(calls) == 3
    assert calls[0].startswith(
        "sagemaker-runtime invoke-endpoint --endpoint-name support --content-type application/json"
    )

    asked.unlink()
    monkeypatch.setenv("REFUSALS", "100")
    with pytest.raises(NoAnswerError, match="no answer: 503 busy"):
        verify(endpoint, pause_seconds=0)
    assert len(asked.read_text().splitlines()) == 5
