"""`GET /metrics`: what Prometheus is told."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from adapter.chat_service import ChatService, Reply
from adapter.result import Result
from adapter.service import DecisionService

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60)
_MASS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1)


class Metrics:
    """The numbers of one adapter, in a registry of its own."""

    def __init__(self, service: DecisionService, chats: ChatService) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "adapter_requests", "Requests by path and HTTP status.", ["path", "status"], registry=registry
        )
        self._busy = Counter("adapter_busy", "Requests refused because they could not end in time.", registry=registry)
        self._evaluated = Counter("adapter_tokens_evaluated", "Prompt tokens that were evaluated.", registry=registry)
        self._reused = Counter("adapter_tokens_reused", "Prompt tokens that a cached state spared.", registry=registry)
        self._generated = Counter("adapter_tokens_generated", "Tokens that chats generated.", registry=registry)
        self._seconds = Histogram(
            "adapter_decision_seconds", "From acceptance to answer.", buckets=_SECONDS, registry=registry
        )
        self._mass = Histogram(
            "adapter_allowed_token_mass",
            "Share of the vocabulary's probability on the declared answer slots.",
            buckets=_MASS,
            registry=registry,
        )
        self._last = Gauge(
            "adapter_engine_heartbeat_timestamp_seconds", "When the engine last answered.", registry=registry
        )
        self._last.set_to_current_time()  # an adapter starts with a real decision
        depth = Gauge("adapter_queue_depth", "Prompts waiting or running.", registry=registry)
        depth.set_function(lambda: service.queue_depth)
        in_flight = Gauge("adapter_chats_in_flight", "Chats waiting or generating.", registry=registry)
        in_flight.set_function(lambda: chats.in_flight)
        healthy = Gauge("adapter_engine_up", "1 while the engine is alive and not stuck.", registry=registry)
        healthy.set_function(lambda: service.fault() is None)

        exact = Gauge(
            "adapter_answers_exact",
            "1 where probes found fresh, cached and grouped answers equal in every bit.",
            registry=registry,
        )
        exact.set(service.exactness["exact"])
        joint = Gauge("adapter_joint_decoding", "1 where prompts are decoded together.", registry=registry)
        joint.set(service.exactness["joint"])

    def count_request(self, path: str, status: int) -> None:
        """A request has been answered."""
        self._requests.labels(path, str(status)).inc()

    def count_busy(self) -> None:
        """A request has been refused for want of time."""
        self._busy.inc()

    def observe(self, results: Sequence[Result]) -> None:
        """Decisions have been answered with `results` (the wire's `R`)."""
        self._last.set_to_current_time()
        for result in results:
            self._reused.inc(result["cached_tokens"])
            self._evaluated.inc(result["input_tokens"] - result["cached_tokens"])
            self._seconds.observe(result["total_seconds"])
            self._mass.observe(result["allowed_token_mass"])

    def observe_chat(self, reply: Reply) -> None:
        """A chat has ended, or its caller has left."""
        self._last.set_to_current_time()
        self._reused.inc(reply.reused_tokens)
        self._evaluated.inc(reply.evaluated_tokens)
        self._generated.inc(reply.tokens)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)
