"""`make load`: more callers than the machine can serve, and what becomes of each of their requests.

A fixed pool of decisions is answered one by one first. Then callers ask for them, alone and several over one state, as
fast as they are answered; half of them heed Retry-After, the others come back after 0.1 s. Every request must end in
time, as the answers known before, equal in every bit, or as a 503 with Retry-After. /ping is asked all the while by a
process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from tools.adapter import running_adapter

ROOT = Path(__file__).parents[1]
EMBEDDED = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"

_IMPATIENCE_SECONDS = 0.1
_PROBES_PER_SECOND = 20
_PING_P99_SECONDS = 0.2
_GROWTH = 1.05  # of memory, from one part of the run to the next
_CACHE_BYTES = 64 * 1024 * 1024  # small, so that it is full, and memory at its height, soon after the start
_SEED = 20261201

_QUESTIONS = (
    ("Which queue should handle this?", ("Account access.", "Billing and payment.", "Delivery.")),
    ("Is the customer angry?", ("Yes.", "No.")),
    ("How urgent is it?", ("It can wait.", "This week.", "Today.", "Now.")),
    ("Does a person have to look at it?", ("Yes.", "No.")),
)
_SENTENCES = (
    "The parcel {n} left the depot on Monday and was scanned twice on its way to the regional hub.",
    "The customer says that nobody rang and that the neighbour in number {n} saw no van all day.",
    "An agent promised a call back within {n} hours, which did not happen.",
    "The invoice over {n} euros was charged at once and shows the full price of delivery.",
)


@dataclass(frozen=True)
class Ask:
    """A request of the pool: one decision, or several over one state; ids are given when it is sent."""

    decisions: tuple[dict[str, Any], ...]

    def body(self, mark: str) -> dict[str, Any]:
        """The body for `/invocations`, with ids that nobody else uses."""
        marked = [{**decision, "id": f"{mark}-{index}"} for index, decision in enumerate(self.decisions)]
        return {"decision": marked[0]} if len(marked) == 1 else {"decisions": marked}


@dataclass
class Outcomes:
    """What became of the requests of one kind of caller."""

    sent: int = 0
    refused: int = 0  # at once, with 503 and Retry-After
    given_up: int = 0  # accepted, then told 503 and Retry-After: it took longer than predicted
    wrong: int = 0  # an answer other than the known one, or somebody else's
    late: int = 0  # ended after the deadline
    lost: Counter[str] = field(default_factory=Counter)  # by what was seen instead of an answer
    seconds: list[float] = field(default_factory=list)  # of right answers
    decisions: int = 0  # right

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(
            self.sent + other.sent,
            self.refused + other.refused,
            self.given_up + other.given_up,
            self.wrong + other.wrong,
            self.late + other.late,
            self.lost + other.lost,
            self.seconds + other.seconds,
            self.decisions + other.decisions,
        )


@dataclass(frozen=True)
class Pings:
    """What the prober saw."""

    seconds: list[float]
    failed: int
    waits: list[float]  # seconds by which the machine woke the prober too late: what is lost before the server is asked


@dataclass(frozen=True)
class Report:
    """A whole run."""

    seconds: float  # from the first request to the last answer
    patient: Outcomes
    impatient: Outcomes
    pings: Pings
    memory: list[int]  # bytes resident, at regular times

    @property
    def total(self) -> Outcomes:
        """All callers together."""
        return self.patient + self.impatient

    def promises(self) -> dict[str, bool]:
        """What the server promises, and whether it was kept; the last two are about time and memory."""
        total, third = self.total, max(1, len(self.memory) // 3)
        return {
            "every request ended as a right answer or as a 503 with Retry-After": not total.wrong and not total.lost,
            "none ended after the deadline": not total.late,
            f"/ping: p99 under {_PING_P99_SECONDS * 1000:.0f} ms, none failed": (
                not self.pings.failed and float(np.percentile(self.pings.seconds, 99)) < _PING_P99_SECONDS
            ),
            "memory: the last third's peak no more than 5 % above the second's": (
                max(self.memory[-third:]) <= _GROWTH * max(self.memory[-2 * third : -third] or self.memory)
            ),
        }


def pool(size: int) -> list[Ask]:
    """Prompts of 100 to 400 tokens; every third request asks four questions over one state, every fourth returns."""
    asks = []
    for number in range(size):
        distinct = number - number % 4 if number % 4 == 1 else number
        state = " ".join(_SENTENCES[n % 4].format(n=distinct * 20 + n) for n in range(1 + distinct % 12))
        questions = _QUESTIONS if number % 3 == 0 else (_QUESTIONS[number % 4],)
        asks.append(
            Ask(
                tuple(
                    {
                        "state": state,
                        "question": question,
                        "options": [{"id": text, "description": text} for text in options],
                    }
                    for question, options in questions
                )
            )
        )
    return asks


def solve(url: str, asks: Sequence[Ask]) -> list[list[list[float]]]:
    """The right probabilities of every decision of every request, asked one by one."""
    with httpx.Client(timeout=600) as client:

        def probabilities(decision: dict[str, Any]) -> list[float]:
            response = client.post(f"{url}/invocations", json={"decision": {**decision, "id": "alone"}})
            found: list[float] = response.raise_for_status().json()["result"]["probabilities"]
            return found

        return [[probabilities(decision) for decision in ask.decisions] for ask in asks]


class Load:
    """Callers that ask until they are told to stop."""

    def __init__(self, url: str, asks: Sequence[Ask], answers: Sequence[list[list[float]]], deadline: float) -> None:
        """`deadline` in seconds is the server's."""
        self._url = url
        self._asks = asks
        self._answers = answers
        self._deadline = deadline
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """No caller sends another request; those that are sent are waited for."""
        self._stop.set()

    async def run(self, callers: int, *, patient: bool) -> Outcomes:
        """All outcomes, after `stop` when the last request has ended."""
        outcomes = Outcomes()
        limits = httpx.Limits(max_connections=callers, max_keepalive_connections=callers)
        async with httpx.AsyncClient(timeout=self._deadline + 60, limits=limits) as client:
            await asyncio.gather(*(self._call(client, number, outcomes, patient) for number in range(callers)))
        return outcomes

    async def _call(self, client: httpx.AsyncClient, number: int, outcomes: Outcomes, patient: bool) -> None:
        chance = random.Random(f"{_SEED} {number} {patient}")  # noqa: S311 - reproducible, not secret
        while not self._stop.is_set():
            index = chance.randrange(len(self._asks))
            body = self._asks[index].body(f"{'patient' if patient else 'impatient'}-{number}-{outcomes.sent}")
            outcomes.sent += 1
            started = time.perf_counter()
            try:
                response = await client.post(f"{self._url}/invocations", json=body)
            except httpx.HTTPError as error:
                outcomes.lost[type(error).__name__] += 1
                continue
            seconds = time.perf_counter() - started
            outcomes.late += seconds > self._deadline
            if response.status_code == 200:  # noqa: PLR2004
                if _is_right(response.json(), body, self._answers[index]):
                    outcomes.seconds.append(seconds)
                    outcomes.decisions += len(self._answers[index])
                else:
                    outcomes.wrong += 1
            elif response.status_code == 503 and response.headers.get("retry-after", "").isdecimal():  # noqa: PLR2004
                if "longer than predicted" in response.json()["error"]:
                    outcomes.given_up += 1
                else:
                    outcomes.refused += 1
                await self._pause(float(response.headers["retry-after"]) if patient else _IMPATIENCE_SECONDS)
            else:
                outcomes.lost[str(response.status_code)] += 1

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except asyncio.TimeoutError:
            return


def _is_right(answer: dict[str, Any], body: dict[str, Any], expected: list[list[float]]) -> bool:
    results = answer["results"] if "results" in answer else [answer["result"]]
    asked = body["decisions"] if "decisions" in body else [body["decision"]]
    return [(result["id"], result["probabilities"]) for result in results] == [
        (decision["id"], probabilities) for decision, probabilities in zip(asked, expected, strict=True)
    ]


def probe(url: str, seconds: float) -> Pings:
    """Ask /ping for so long, on a connection of its own."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    times, waits, failed = [], [], 0
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        try:
            connection.request("GET", "/ping")
            response = connection.getresponse()
            response.read()
            failed += response.status != 200  # noqa: PLR2004
        except OSError:
            failed += 1
            connection.close()
        ended = time.perf_counter()
        times.append(ended - started)
        pause = max(0.0, 1 / _PROBES_PER_SECOND - times[-1])
        time.sleep(pause)
        waits.append(time.perf_counter() - ended - pause)
    return Pings(times, failed, waits)


async def measure(url: str, process_id: int, load: Load, *, callers: int, duration: float) -> Report:
    """Let the callers ask for `duration` seconds, wait for their last answers, and say what happened."""
    started = time.perf_counter()
    memory: list[int] = []
    with ProcessPoolExecutor(1) as prober:
        pinging = asyncio.get_running_loop().run_in_executor(prober, probe, url, duration)
        sampling = asyncio.create_task(_sample_memory(process_id, duration / 30, memory))
        patient = asyncio.create_task(load.run(callers - callers // 2, patient=True))
        impatient = asyncio.create_task(load.run(callers // 2, patient=False))
        await asyncio.sleep(duration)
        sampling.cancel()
        load.stop()
        await asyncio.gather(patient, impatient)
        seconds = time.perf_counter() - started
        pings = await pinging
    return Report(seconds, patient.result(), impatient.result(), pings, memory)


async def _sample_memory(process_id: int, interval: float, samples: list[int]) -> None:
    while True:
        samples.append(_resident_bytes(process_id))
        await asyncio.sleep(interval)


def _resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _print(report: Report, callers: int, deadline: float) -> None:
    console = Console(width=max(120, Console().width))
    table = Table(title=f"{callers} callers for {report.seconds:.0f} s, deadline {deadline:g} s")
    counts = ("sent", "right", "decisions/s", "refused", "given up", "wrong", "lost", "late")
    for heading in ("callers", *counts, "p50 s", "p95 s", "p99 s"):
        table.add_column(heading, justify="left" if heading == "callers" else "right")
    for name, outcomes in (
        ("heed Retry-After", report.patient),
        (f"come back after {_IMPATIENCE_SECONDS} s", report.impatient),
        ("all", report.total),
    ):
        numbers = (outcomes.sent, len(outcomes.seconds), f"{outcomes.decisions / report.seconds:.1f}")
        faults = (outcomes.refused, outcomes.given_up, outcomes.wrong, outcomes.lost.total(), outcomes.late)
        times = [f"{np.percentile(outcomes.seconds or [np.nan], share):.2f}" for share in (50, 95, 99)]
        table.add_row(name, *map(str, (*numbers, *faults)), *times)
    console.print(table)
    if report.total.lost:
        console.print(f"lost: {dict(report.total.lost)}")
    pings = report.pings
    seen, waited = (
        "/".join(f"{1000 * np.percentile(times, share):.0f}" for share in (50, 99, 100))
        for times in (pings.seconds, pings.waits)
    )
    console.print(f"/ping: {len(pings.seconds)} asked, {pings.failed} failed, p50/p99/max {seen} ms")
    console.print(f"the machine woke the prober, which does nothing else, {waited} ms too late")
    sixths = [max(part) / 1e6 for part in np.array_split(report.memory, 6)]
    console.print(f"resident memory, peak of each sixth: {', '.join(f'{peak:.0f}' for peak in sixths)} MB")
    for promise, kept in report.promises().items():
        console.print(f"{'kept  ' if kept else 'BROKEN'}  {promise}", style=None if kept else "bold red")


def main() -> int:
    """Run and print; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__.splitlines()[0])
    parser.add_argument("--duration", type=float, default=60, help="seconds")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--deadline", type=float, default=55, help="seconds; the adapter's SEMIF_DEADLINE_SECONDS")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--requests", type=int, default=48, help="in the pool")
    parser.add_argument("--model", type=Path, default=EMBEDDED)
    options = parser.parse_args()
    settings = {"SEMIF_THREADS": str(options.threads), "SEMIF_CACHE_BYTES": str(_CACHE_BYTES)}
    asks = pool(options.requests)
    with running_adapter(options.model, **settings, SEMIF_DEADLINE_SECONDS="600") as adapter:
        started = time.perf_counter()
        answers = solve(adapter.url, asks)  # by another process, so that the loaded one has seen nothing
        known = sum(map(len, answers)) / (time.perf_counter() - started)
        print(f"{sum(map(len, answers))} decisions of {len(asks)} requests answered one by one: {known:.1f} a second")
    with running_adapter(options.model, **settings, SEMIF_DEADLINE_SECONDS=str(options.deadline)) as adapter:
        load = Load(adapter.url, asks, answers, options.deadline)
        report = asyncio.run(
            measure(adapter.url, adapter.process_id, load, callers=options.callers, duration=options.duration)
        )
    _print(report, options.callers, options.deadline)
    return 0 if all(report.promises().values()) else 1


if __name__ == "__main__":
    sys.exit(main())
