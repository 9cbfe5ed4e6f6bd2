"""What is measured: requests as callers would send them, and what each workload must reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from adapter.engine import TokenRun
from adapter.prompt import Layout, PromptBuilder

UNIT = 16  # tokens, the alignment unit of the targets
_YES_NO = ("Yes.", "No.")
_QUEUES = (
    "Account access and authentication support.",
    "Billing and payment support.",
    "Sales and product evaluation.",
)
_SENTENCES = (
    "The parcel left the depot on the {n}th and was scanned twice on its way to the regional hub.",
    "The customer says that nobody rang and that the neighbour in number {n} saw no van all day.",
    "An agent promised a call back within {n} hours, which did not happen.",
    "The invoice over {n} euros was charged at once and shows the full price of delivery.",
    "A voucher worth {n} euros was offered as an apology, and the customer did not take it.",
)
_QUESTIONS = (
    "Is the customer angry?",
    "Was the parcel delivered?",
    "Was a promise broken?",
    "Was money charged?",
    "Was an apology offered?",
    "Does a neighbour appear?",
    "Is a call back due?",
    "Is the hub named?",
    "Was the van seen?",
    "Is a refund asked for?",
    "Is the price in dispute?",
    "Is the carrier at fault?",
    "Was the parcel scanned?",
    "Is this about software?",
    "Is there a deadline?",
    "Is legal action threatened?",
    "Was the offer accepted?",
    "Is the address wrong?",
    "Is the case closed?",
    "Should a person look at it?",
    "Is the text in English?",
)


@dataclass(frozen=True)
class Workload:
    """Requests in order; those of `before` are answered but not measured."""

    name: str
    before: list[list[TokenRun]]
    requests: list[list[TokenRun]]
    plain: list[TokenRun]  # what the plain path evaluates for the same answers
    limit: float  # most tokens that may be evaluated, as a share of the plain path's
    speed: float  # how many times the plain path's decisions per second, at least; 0 where nothing is promised
    concurrent: bool = False


def workloads(prompts: PromptBuilder, *, quick: bool) -> Iterator[Workload]:
    """All of them for one model."""

    def run(state: object, question: str, options: tuple[str, ...], layout: Layout = "state-first") -> TokenRun:
        prompt = prompts.build(state, question, options, layout)
        return TokenRun(prompt.tokens, prompt.boundaries)

    def count(text: str) -> int:
        return len(run(text, _QUESTIONS[0], _YES_NO).tokens)

    stranger = [run("A stranger's question about something else entirely.", "Is it urgent?", _YES_NO)]
    unique = [run(_state(12, count, start), "Which queue should handle this?", _QUEUES) for start in range(100, 124)]

    short = unique[: 3 if quick else 8]
    yield Workload("unique short states", [], [[one] for one in short], short, limit=0.75, speed=1)

    long_state = _state(250 if quick else 1700, count, 7)
    questions = _QUESTIONS[: 5 if quick else 21]
    asked = [replace(run(long_state, question, _YES_NO), shared=True) for question in questions]
    fan_out = f"{len(asked)} questions over one {asked[0].boundaries[-1]:,}-token state"
    limit, speed = (0.4, 2.0) if quick else (0.09, 8.0)
    yield Workload(fan_out, [], [asked], asked, limit=limit, speed=speed)

    again = replace(asked[-1], shared=False)
    question = len(again.tokens) - again.boundaries[-1]
    yield Workload(
        "same state asked again",
        [[replace(asked[0], shared=False)], stranger],
        [[again]],
        [again],
        limit=(question + UNIT) / len(again.tokens),
        speed=1,
    )

    turns = [run("\n".join(_turns(number)), _QUESTIONS[0], _YES_NO) for number in range(3, 6 if quick else 12)]
    novel = [len(turn.tokens) - earlier.boundaries[-1] + UNIT for earlier, turn in pairwise(turns)]
    yield Workload(
        "transcript growing by a turn",
        [[turns[0]]],
        [[turn] for turn in turns[1:]],
        turns[1:],
        limit=sum(novel) / sum(len(turn.tokens) for turn in turns[1:]),
        speed=1,
    )

    callers = unique[-4 if quick else -16 :]
    yield Workload(
        f"{len(callers)} callers at once", [], [[one] for one in callers], callers, limit=1.0, speed=1, concurrent=True
    )

    options = tuple(f"Products of group {number}, returned by the customer." for number in range(30 if quick else 77))
    states = [_state(40, count, 300 + number) for number in range(3 if quick else 6)]
    first = [run(state, "Which group is meant?", options, "criteria-first") for state in states]
    yield Workload(
        f"{len(options)} options, criteria-first",
        [[first[0]]],
        [[one] for one in first[1:]],
        [run(state, "Which group is meant?", options) for state in states[1:]],
        limit=0.15,
        speed=1,
    )


def _state(tokens: int, count: Callable[[str], int], start: int) -> str:
    """A text of about so many tokens, different for every `start`."""
    around = count("")
    text = f"Case {start}."
    for sentence in islice(_sentences(start), 10_000):
        if count(text) - around >= tokens:
            break
        text += " " + sentence
    return text


def _sentences(start: int) -> Iterator[str]:
    number = start
    while True:
        yield _SENTENCES[number % len(_SENTENCES)].format(n=number % 89 + 2)
        number += 1


def _turns(count: int) -> list[str]:
    return [f"{'user' if n % 2 else 'agent'}: {_SENTENCES[n % len(_SENTENCES)].format(n=n + 3)}" for n in range(count)]
