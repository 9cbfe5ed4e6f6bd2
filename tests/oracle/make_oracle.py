"""Computes what llama.cpp should compute: the logits behind about 40 prompts, by an independent implementation.

Nothing of the adapter is used. The prompt is written with json.dumps and Hugging Face's chat template renderer, cut
into tokens by Hugging Face's `tokenizers`, and evaluated by `transformers` in float32 with the weights of the embedded
GGUF, dequantized. The result, `oracle.json.gz` beside this file, is what tests/container/test_oracle.py compares with.

It is made once, not by `make test`, in an environment of its own (Python 3.11, 3 GB of disk, 5 min on 2 cores):

    python3 -m venv oracle-venv
    oracle-venv/bin/pip install torch==2.13.0 transformers==5.24.0 tokenizers==0.23.3 \\
        gguf==0.19.0 numpy==2.4.6 jinja2==3.1.6
    oracle-venv/bin/python -m tests.oracle.make_oracle .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import string
import sys
from pathlib import Path
from typing import Any

import gguf
import torch  # type: ignore[import-not-found] # torch and transformers are not in the project's own environment
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]
from transformers.utils.chat_template_utils import render_jinja_template  # type: ignore[import-not-found]

from tests.oracle.decisions import DECISIONS

FIXTURE = Path(__file__).with_name("oracle.json.gz")
SYSTEM = (
    "Apply the supplied criterion to the supplied evidence. Choose exactly one listed option. "
    "Respond with only its uppercase letter, with no explanation or reasoning."
)


def load_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """SmolLM2's tokenizer: its published pre-tokenizer, and the vocabulary and merges that the GGUF carries."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text`, with the control tokens that it holds."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def answer_slots(tokenizer: Tokenizer, text: str, count: int) -> dict[str, int]:
    """The first `count` codes that add exactly one token to the prompt `text`, no two the same, and those tokens."""
    prompt = encode(tokenizer, text)
    codes = [*string.ascii_uppercase, *("".join(pair) for pair in itertools.product(string.ascii_uppercase, repeat=2))]
    slots: dict[str, int] = {}
    for code in codes:
        extended = encode(tokenizer, text + code)
        if extended[:-1] == prompt and extended[-1] not in slots.values():
            slots[code] = extended[-1]
        if len(slots) == count:
            return slots
    raise AssertionError(f"only {len(slots)} codes add one token each")


def prompt_text(template: str, decision: dict[str, Any], codes: list[str]) -> str:
    """`direct-options-v1` or `criteria-first-v1`, as the wire contract words it."""
    options = [
        {"letter": code, "description": option["description"]}
        for code, option in zip(codes, decision["options"], strict=True)
    ]
    value = {"evidence": decision["state"], "criterion": decision["question"], "options": options}
    if decision["layout"] == "criteria-first":
        value = {"criterion": decision["question"], "options": options, "evidence": decision["state"]}
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": json.dumps(value, ensure_ascii=False)},
    ]
    rendered, _ = render_jinja_template(
        conversations=[messages], chat_template=template, add_generation_prompt=True, enable_thinking=False
    )
    return str(rendered[0])


def main(path: Path) -> None:
    """Compute every row and write the fixture."""
    reader = gguf.GGUFReader(path)
    template = reader.fields["tokenizer.chat_template"].contents()
    tokenizer = load_tokenizer(reader)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    # The prompt shows the codes, and which codes are slots hangs on the prompt: found on an empty one, checked on each.
    empty = prompt_text(template, {"state": "", "question": "", "options": [], "layout": "state-first"}, [])
    codes = list(answer_slots(tokenizer, empty, 255))

    rows = []
    for decision in DECISIONS:
        chosen = codes[: len(decision["options"])]
        text = prompt_text(template, decision, chosen)
        tokens = encode(tokenizer, text)
        slots = answer_slots(tokenizer, text, len(chosen))
        if list(slots) != chosen:
            raise AssertionError(f"{decision['id']}: other codes are slots behind this prompt")
        with torch.inference_mode():
            logits = model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1]
        slot_logits = [round(float(logits[slot]), 5) for slot in slots.values()]
        rows.append(
            {
                "decision": decision,
                "prompt_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "tokens": len(tokens),
                "tokens_sha256": hashlib.sha256(json.dumps(tokens).encode()).hexdigest(),
                "slot_tokens": list(slots.values()),
                "slot_logits": slot_logits,
                "argmax": int(logits.argmax()),
                "logsumexp": round(float(torch.logsumexp(logits.double(), dim=0)), 5),
            }
        )
        print(decision["id"], len(tokens), slot_logits[:4], flush=True)
    data = json.dumps({"model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rows": rows}, ensure_ascii=False)
    FIXTURE.write_bytes(gzip.compress(data.encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
