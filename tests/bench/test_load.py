"""A short load: every request ends as its right answer or as a 503, also when the adapter is told to end."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from bench.load import Load, Outcomes, Pings, Report, pool, solve
from tests.container.conftest import Server, running_adapter
from tests.models.make_models import model_path

DEADLINE = 55  # the adapter's own
KEPT = Report(
    seconds=60,
    patient=Outcomes(sent=3, refused=1, given_up=1, seconds=[1.0], decisions=1),
    impatient=Outcomes(sent=2, refused=1, seconds=[2.0], decisions=4),
    pings=Pings([0.01] * 100, 0, [0.0] * 100),
    memory=[100, 200, 200, 209],
)


async def _until_terminated(server: Server, load: Load) -> tuple[Outcomes, Outcomes]:
    asking = asyncio.gather(load.run(6, patient=True), load.run(18, patient=False))
    await asyncio.sleep(4)
    load.stop()
    server.process.send_signal(signal.SIGTERM)  # while what was sent is still unanswered
    patient, impatient = await asking
    return patient, impatient


def test_nothing_is_lost_or_mixed_up_under_load_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(model_path("tiny-hybrid"))
    asks = pool(12)
    with running_adapter(tmp_path, tmp_path / "log", SEMIF_MAX_IN_FLIGHT="16") as server:
        load = Load(server.url, asks, solve(server.url, asks), DEADLINE)
        patient, impatient = asyncio.run(_until_terminated(server, load))
        for outcomes in (patient, impatient):
            assert (outcomes.wrong, outcomes.lost) == (0, Counter())
            assert len(outcomes.seconds) + outcomes.refused + outcomes.given_up == outcomes.sent
        total = patient + impatient
        assert total.refused > 0
        assert total.decisions > len(total.seconds) > 0  # shared requests among them
        assert server.process.wait(60) == 0


def test_the_pool_holds_single_and_shared_requests_and_states_that_return() -> None:
    asks = pool(24)
    assert Counter(len(ask.decisions) for ask in asks) == {1: 16, 4: 8}
    assert len({ask.decisions[0]["state"] for ask in asks}) == 18
    assert set(asks[0].body("a")) == {"decisions"}
    assert asks[1].body("a")["decision"]["id"] == "a-0"


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"patient": Outcomes(sent=1, wrong=1)}, ["every request"]),
        ({"impatient": Outcomes(sent=1, lost=Counter({"ReadError": 1}))}, ["every request"]),
        ({"impatient": Outcomes(sent=1, late=1)}, ["none ended after the deadline"]),
        ({"pings": Pings([0.01] * 97 + [0.3] * 3, 0, [])}, ["/ping: p99"]),
        ({"pings": Pings([0.01] * 100, 1, [])}, ["/ping: p99"]),
        ({"memory": [100, 200, 200, 212]}, ["memory"]),
    ],
)
def test_a_broken_promise_is_told(changes: dict[str, object], broken: list[str]) -> None:
    report = Report(**{**vars(KEPT), **changes})
    told = [promise for promise, kept in report.promises().items() if not kept]
    assert len(told) == len(broken)
    assert all(promise.startswith(name) for promise, name in zip(told, broken, strict=True))
