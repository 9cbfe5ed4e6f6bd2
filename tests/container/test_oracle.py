"""The adapter against an independent implementation: prompts, tokens, slots and logits of tests/oracle/oracle.json.gz.

The oracle computed in float32 with the dequantized weights. Two files hold these weights for llama.cpp:

- A copy of the embedded model in F32. What is left is the rounding of keys and values to 16 bits: measured 0.004 at
  most, 0.0015 as the root of the mean square, at logits of about 30. A rotary base of 10,000 instead of the model's
  100,000 moves them by 0.16 (83 tokens) and 1.03 (130 tokens).
- The embedded Q4_1 itself. Its kernels round activations to 8 bits in every layer; that is the price of speed, not an
  error. Measured over prompts of 83 to 6,895 tokens: 0.67 at most, 0.17 as the root of the mean square. Most of it is
  common to all slots: no probability moved by more than 0.025.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.engine import Engine, Evaluation, TokenRun
from adapter.model import Model
from adapter.prompt import Prompt, PromptBuilder
from adapter.readout import read
from tests.models.make_models import model_path

ORACLE = json.loads(gzip.decompress((Path(__file__).parents[1] / "oracle" / "oracle.json.gz").read_bytes()))
ROWS: list[dict[str, Any]] = ORACLE["rows"]
_LONGEST = 4096  # tokens; the longest row has 4,044
_LONGEST_QUANTIZED = 2000  # tokens; the longest row once is enough, it takes as long as all others


@dataclass(frozen=True)
class Tolerance:
    """How far an engine may be from the oracle: about twice what was measured."""

    logit: float
    probability: float  # among the declared options


TOLERANCES = {"embedded-f32": Tolerance(0.01, 0.002), "embedded": Tolerance(1.3, 0.05)}
EVALUATED = [
    pytest.param(name, row, id=f"{name}-{row['decision']['id']}")
    for name in TOLERANCES
    for row in ROWS
    if name == "embedded-f32" or row["tokens"] <= _LONGEST_QUANTIZED
]


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Tolerance]]:
    """An engine with the model that the test names, and how far it may be from the oracle."""
    model = Model(model_path(request.param))
    engine = Engine(model, max_tokens=_LONGEST, threads=1)
    yield engine, TOLERANCES[request.param]
    engine.close()
    model.close()


def _prompt(prompts: PromptBuilder, row: dict[str, Any]) -> Prompt:
    decision = row["decision"]
    options = [option["description"] for option in decision["options"]]
    return prompts.build(decision["state"], decision["question"], options, decision["layout"])


def test_the_oracle_speaks_of_the_embedded_model() -> None:
    assert hashlib.sha256(model_path("embedded").read_bytes()).hexdigest() == ORACLE["model_sha256"]
    assert len(ROWS) == 40
    assert {2, 26, 27, 255} <= {len(row["decision"]["options"]) for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["decision"]["id"]))
def test_prompt_tokens_and_slots_are_the_oracles(embedded_prompts: PromptBuilder, row: dict[str, Any]) -> None:
    prompt = _prompt(embedded_prompts, row)
    assert prompt.sha256 == row["prompt_sha256"]
    assert len(prompt.tokens) == row["tokens"]
    assert hashlib.sha256(json.dumps(list(prompt.tokens)).encode()).hexdigest() == row["tokens_sha256"]
    assert [slot.token for slot in prompt.slots] == row["slot_tokens"]


@pytest.mark.parametrize(("engine", "row"), EVALUATED, indirect=["engine"])
def test_logits_are_the_oracles_fresh_and_cached(
    engine: tuple[Engine, Tolerance], embedded_prompts: PromptBuilder, row: dict[str, Any]
) -> None:
    tested, tolerance = engine
    prompt = _prompt(embedded_prompts, row)
    run = TokenRun(prompt.tokens, prompt.boundaries, shared=True)  # so that its state is saved at once
    tested.cache.clear()
    tested.forget_streams()
    fresh = tested.evaluate([run])[0]
    tested.forget_streams()
    cached = tested.evaluate([run])[0]
    assert fresh.reused == 0
    assert cached.reused > 0
    for evaluation in (fresh, cached):
        _compare(evaluation, row, tolerance)


def _compare(evaluation: Evaluation, row: dict[str, Any], tolerance: Tolerance) -> None:
    slots = row["slot_tokens"]
    logits = evaluation.logits.astype(np.float64)
    np.testing.assert_allclose(logits[slots], row["slot_logits"], rtol=0, atol=tolerance.logit)
    expected = np.exp(np.array(row["slot_logits"]) - max(row["slot_logits"]))
    answer = read(evaluation.logits, slots)
    np.testing.assert_allclose(answer.probabilities, expected / expected.sum(), rtol=0, atol=tolerance.probability)
    peak = logits.max()
    assert peak + np.log(np.exp(logits - peak).sum()) == pytest.approx(row["logsumexp"], abs=tolerance.logit)
    # The oracle's likeliest token may only lose to one that is as likely within the tolerance.
    assert peak - logits[row["argmax"]] <= 2 * tolerance.logit
