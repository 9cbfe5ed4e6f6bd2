"""Measures one model: alternating pairs of the engine and the plain path, medians and spread."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adapter.engine import Engine, TokenRun
from adapter.model import Model
from adapter.probes import FIRST_DECISION, Exactness, make_ready
from adapter.prompt import ChatTemplate, PromptBuilder
from adapter.scheduler import Scheduler
from adapter.vocabulary import Vocabulary
from bench.plain import Plain
from bench.workloads import Workload, workloads

_MAX_TOKENS = 2304
_STARTUP_SECONDS = 1.5


@dataclass(frozen=True)
class Row:
    """One line of the table; the fields are those of bench/results/engine.json."""

    workload: str
    model: str
    plain_seconds: float
    ours_seconds: float
    plain_tokens: int
    ours_tokens: int
    ratio_seconds: float
    ratio_tokens: float
    runs: int
    spread: float  # (largest - smallest) / median of the pairs' ratios of seconds


@dataclass(frozen=True)
class Verdict:
    """A row, and whether it reaches its target."""

    row: Row
    target: str
    met: bool
    note: str = ""


class Rig:
    """The engine as the adapter starts it, and the plain path on the same file."""

    def __init__(self, path: Path, *, threads: int, gpu_layers: int) -> None:
        started = time.perf_counter()
        self.model = Model(path, gpu_layers=gpu_layers)
        self.load_seconds = time.perf_counter() - started
        source = self.model.metadata("tokenizer.chat_template")
        if source is None:
            raise ValueError(f"{path} has no chat template")
        vocabulary = Vocabulary(self.model.pointer)
        self.prompts = PromptBuilder(ChatTemplate(source, bos=vocabulary.bos, eos=vocabulary.eos), vocabulary)
        self.engine = Engine(self.model, max_tokens=_MAX_TOKENS, threads=threads)
        self.exactness: Exactness = make_ready(self.engine, self.prompts, tolerance=0.1)
        self.startup_seconds = time.perf_counter() - started - self.load_seconds
        self.startup_tokens = self.engine.evaluated
        self.example = self.prompts.build(*FIRST_DECISION).tokens

    def forget(self) -> None:
        """Back to what the engine was after its start."""
        self.engine.forget_streams()
        self.engine.cache.clear()
        self.engine.keep(self.prompts.head())

    def answer(self, workload: Workload) -> tuple[float, int, list[float]]:
        """Seconds, tokens evaluated, and how long each request waited."""
        if workload.concurrent:
            return self._answer_at_once(workload)
        for request in workload.before:
            self.engine.evaluate(request)
        started = time.perf_counter()
        tokens = sum(
            evaluation.evaluated for request in workload.requests for evaluation in self.engine.evaluate(request)
        )
        return time.perf_counter() - started, tokens, []

    def _answer_at_once(self, workload: Workload) -> tuple[float, int, list[float]]:
        scheduler = Scheduler(self.engine, max_in_flight=1000, deadline_seconds=3600)
        started = time.perf_counter()
        waits: list[float] = []
        jobs = [scheduler.submit(request) for request in workload.requests]
        for job in jobs:
            job.future.add_done_callback(lambda _: waits.append(time.perf_counter() - started))
        evaluations = [evaluation for job in jobs for evaluation in job.future.result()]
        seconds = time.perf_counter() - started
        scheduler.close()
        for run, evaluation in zip([run for request in workload.requests for run in request], evaluations, strict=True):
            alone = self.engine.evaluate([run])[0].logits
            if self.exactness.as_metadata()["exact"] and not np.array_equal(alone, evaluation.logits):
                raise AssertionError("an answer beside strangers differs from the same prompt's alone")
        return seconds, sum(evaluation.evaluated for evaluation in evaluations), waits


def measure(path: Path, name: str, *, threads: int, gpu_layers: int, runs: int, quick: bool) -> dict[str, Any]:
    """All workloads on one model: verdicts as JSON, peak memory in bytes, what the probes found."""
    rig = Rig(path, threads=threads, gpu_layers=gpu_layers)
    works = list(workloads(rig.prompts, quick=quick))
    rig.forget()
    rig.answer(works[0])  # the engine's peak memory, before the plain path loads the model once more
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started = time.perf_counter()
    plain = Plain(path, max_tokens=_MAX_TOKENS, threads=threads, gpu_layers=gpu_layers)
    loaded = time.perf_counter()
    plain.decide(rig.example)
    first = time.perf_counter() - loaded
    verdicts = [_startup(name, rig, loaded - started, first)]
    # Small workloads end in fractions of a second: their tokens are judged, their times only shown.
    works = [replace(work, speed=0.0) for work in works] if quick else works
    verdicts += [_compare(rig, plain, work, name, runs, sample=1 if quick else 3) for work in works]
    plain.close()
    return {
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "peak_bytes": memory,
        "exactness": rig.exactness.as_metadata(),
        "device": rig.model.device,
    }


def _compare(rig: Rig, plain: Plain, work: Workload, name: str, runs: int, *, sample: int) -> Verdict:
    """Alternating pairs. The plain path is timed on `sample` of its decisions, which cost alike, and scaled up."""
    sampled = work.plain[:: -(-len(work.plain) // sample)]
    plain_tokens = sum(len(run.tokens) for run in work.plain)
    scale = plain_tokens / sum(len(run.tokens) for run in sampled)
    pairs: list[tuple[float, float]] = []
    tokens, waits = 0, list[float]()
    for number in range(runs):
        if number % 2:
            theirs = _time_plain(plain, sampled) * scale
        rig.forget()
        ours, tokens, waits = rig.answer(work)
        if number % 2 == 0:
            theirs = _time_plain(plain, sampled) * scale
        pairs.append((theirs, ours))
    ratios = [ours / theirs for theirs, ours in pairs]
    row = Row(
        workload=work.name,
        model=name,
        plain_seconds=statistics.median(theirs for theirs, _ in pairs),
        ours_seconds=statistics.median(ours for _, ours in pairs),
        plain_tokens=plain_tokens,
        ours_tokens=tokens,
        ratio_seconds=statistics.median(ratios),
        ratio_tokens=tokens / plain_tokens,
        runs=runs,
        spread=(max(ratios) - min(ratios)) / statistics.median(ratios),
    )
    note = ""
    if waits:
        note = f"p95 wait {np.percentile(waits, 95):.1f} s of {row.ours_seconds:.1f} s"
    return Verdict(
        row,
        target=f"tokens ≤ {work.limit:.3f}" + (f", {work.speed:g} times as fast" if work.speed else ""),
        met=row.ratio_tokens <= work.limit and row.ratio_seconds * work.speed <= 1,
        note=note,
    )


def _time_plain(plain: Plain, runs: Sequence[TokenRun]) -> float:
    started = time.perf_counter()
    for run in runs:
        plain.decide(run.tokens)
    return time.perf_counter() - started


def _startup(name: str, rig: Rig, plain_load: float, plain_first: float) -> Verdict:
    row = Row(
        workload="start-up to first decision, beyond loading",
        model=name,
        plain_seconds=plain_first,
        ours_seconds=rig.startup_seconds,
        plain_tokens=len(rig.example),
        ours_tokens=rig.startup_tokens,
        ratio_seconds=rig.startup_seconds / plain_first,
        ratio_tokens=rig.startup_tokens / len(rig.example),
        runs=1,
        spread=0.0,
    )
    note = f"loading takes {rig.load_seconds:.1f} s, the plain path's {plain_load:.1f} s"
    return Verdict(row, f"≤ {_STARTUP_SECONDS} s", rig.startup_seconds <= _STARTUP_SECONDS, note)
