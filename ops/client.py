"""The client of a decision endpoint: over SageMaker or straight to an adapter, with retries and thresholds."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
import botocore.exceptions
import httpx
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from typing_extensions import Self

from ops.errors import UNREACHABLE, USAGE, OpsError, UsageError, aws_sentence

KEY_VARIABLE = "DECIDE_API_KEY"
# As many requests at a time have a connection of their own.
CONNECTIONS = 64
_CONNECT_SECONDS = 10
_READ_SECONDS = 70  # an adapter answers within 55 s or says that it cannot; SageMaker cuts it off after 60 s
_JSON = "application/json"

_THROTTLED = ("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded")
_NOT_READY = "ModelNotReadyException"  # AWS answers it with 429, while a model is loaded
_MODEL_ERROR = "ModelError"
_RETRYABLE = (429, 502, 503, 504)  # of an adapter, or of a proxy before it
_NO_ANSWER = 0  # what SageMaker has as the status of a container that timed out or went away
_SERVER_ERROR = 500
_HIGHEST_PORT = 65535
_FOR_NOBODY = (401, 403, 404)  # with these a server refuses whatever is asked
_LONGEST_TEXT = 500  # characters of an answer that is no JSON


class DecisionError(OpsError):
    """No answer. `reason` is one sentence, the adapter's own where it gave one.

    `status` is the adapter's HTTP status, AWS's own where AWS refused, None where there was no answer at all;
    `retryable` says whether the same request may succeed later, and `attempts` how often it was made.
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.retryable = retryable
        # Seconds that the server asks to wait.
        self.retry_after = retry_after
        self.attempts = 1
        refused = status in (400, 413, 422) and not isinstance(self, UnreachableError)
        self.exit_status = USAGE if refused else UNREACHABLE

    def __str__(self) -> str:
        return self.reason if self.attempts == 1 else f"{self.reason} (asked {self.attempts} times)"


class UnreachableError(DecisionError):
    """No decision at all would be answered here: nobody listens, or the credentials or the name are wrong."""


@dataclass(frozen=True)
class Retry:
    """When to ask again: capped exponential backoff with full jitter, on top of what `Retry-After` says.

    No attempt begins later than `seconds` after the first. Where nobody accepts a connection there are
    `connect_attempts`. Of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter.
    """

    seconds: float = 120.0
    first_seconds: float = 0.5
    cap_seconds: float = 20.0
    connect_attempts: int = 4
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def pause(self, error: DecisionError, spent: float) -> float | None:
        """Seconds to wait after `error` (its `attempts` so far, `spent` seconds in all); None is to give up."""
        left = self.seconds - spent
        asked_for = error.retry_after or 0.0
        if not error.retryable or left <= 0 or asked_for >= left:
            return None
        if isinstance(error, UnreachableError) and error.attempts >= self.connect_attempts:
            return None
        # 2**64 is beyond any cap; more would overflow a float.
        longest = min(self.cap_seconds, self.first_seconds * 2.0 ** min(error.attempts - 1, 64))
        return min(asked_for + longest * self.random(), left)


RETRY = Retry()


@dataclass(frozen=True)
class Outcome:
    """What to do by an answer. `choice` is an option's id, or None where nothing is likely enough and no fallback is
    declared; `probability` is the likeliest option's; `why` is None unless the fallback was taken."""

    choice: str | None
    probability: float
    likeliest: str
    fell_back: bool
    why: str | None


@dataclass(frozen=True)
class Policy:
    """When an answer counts: the likeliest option, where it has this probability (0 to 1); else `fallback`."""

    min_probability: float | None = None
    fallback: str | None = None

    def __post_init__(self) -> None:
        p = self.min_probability
        if p is not None and (isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1):
            raise UsageError(f"min_probability is {p!r}; it must be a number from 0 to 1")
        if self.fallback is not None and (not isinstance(self.fallback, str) or not self.fallback):
            raise UsageError(f"fallback is {self.fallback!r}; it must be the id of an option")

    def outcome(self, result: Mapping[str, Any]) -> Outcome:
        """What follows from a result (the wire's R); of equally likely options the first counts."""
        by_id = dict(zip(result["option_ids"], result["probabilities"], strict=True))
        likeliest = max(by_id, key=lambda name: float(by_id[name]))
        probability = float(by_id[likeliest])
        if self.min_probability is None or probability >= self.min_probability:
            return Outcome(likeliest, probability, likeliest, fell_back=False, why=None)
        why = f"below min_probability {_both(self.min_probability, probability)}"
        return Outcome(self.fallback, probability, likeliest, fell_back=True, why=why)


def _both(least: float, found: float) -> str:
    """Two different numbers with as many decimals as tell them apart, two at least."""
    for decimals in range(2, 17):
        one, other = f"{least:.{decimals}f}", f"{found:.{decimals}f}"
        if one != other:
            return f"{one}: {other}"
    return f"{least!r}: {found!r}"


class DecisionClient:
    """Asks a decision endpoint; safe to share between threads. Use it in `with`, or call `close`.

    Every method raises DecisionError where no answer came, after retries where they help, and UsageError for a body
    that is no JSON.
    """

    def __init__(
        self,
        send: Callable[[bytes], bytes],
        target: str,
        *,
        retry: Retry = RETRY,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """`send` makes one attempt with a JSON body and raises DecisionError; `target` names whom, for people."""
        self.target = target
        self._send = send
        self._retry = retry
        self.close = close

    @classmethod
    def sagemaker(cls, endpoint_name: str, *, runtime: Any = None, retry: Retry = RETRY) -> Self:
        """Of a SageMaker endpoint, with the terminal's credentials and region.

        `runtime` is a boto3 client of `sagemaker-runtime`, which should make one attempt only. Raises botocore's
        errors.
        """
        found = runtime or sagemaker_runtime()

        def send(body: bytes) -> bytes:
            return _invoke(found, endpoint_name, body)

        return cls(send, f"endpoint {endpoint_name}", retry=retry)

    @classmethod
    def http(cls, url: str, *, api_key: str | None = None, retry: Retry = RETRY) -> Self:
        """Of an adapter reached directly, such as http://127.0.0.1:8080.

        `api_key` is sent as a bearer token; None is DECIDE_API_KEY of the environment, where it is set. Raises
        UsageError for an address or a key that is none.
        """
        client = httpx.Client(**_http_settings(api_key))
        address = _invocations(url)

        def send(body: bytes) -> bytes:
            try:
                answer = client.post(address, content=body)
            except httpx.HTTPError as error:
                raise _http_error(url, error) from error
            return _http_answer(answer)

        return cls(send, url, retry=retry, close=client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(self, decision: Mapping[str, Any]) -> dict[str, Any]:
        """One decision (the wire's D) to its result (R)."""
        return _result(self.invoke({"decision": decision}))

    def decide_all(self, decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Several decisions over one state, with different ids: `{"results": [R, ...], "timing": {...}}`."""
        return self.invoke({"decisions": list(decisions)})

    def invoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Any body of `/invocations` that is answered by a JSON object."""
        sent = _json(body)
        spent, attempts = 0.0, 0
        while True:
            begun = time.monotonic()
            try:
                return _object(self._send(sent))
            except DecisionError as error:
                attempts += 1
                error.attempts = attempts
                spent += time.monotonic() - begun
                pause = self._retry.pause(error, spent)
                if pause is None:
                    raise
            self._retry.sleep(pause)
            spent += pause


class AsyncDecisionClient:
    """`DecisionClient` for asyncio: `async with`, or `await close()`. SageMaker is asked by boto3 in threads."""

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[bytes]],
        target: str,
        *,
        retry: Retry = RETRY,
        close: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """As DecisionClient; `sleep` waits in the place of `retry.sleep`."""
        self.target = target
        self._send = send
        self._retry = retry
        self._sleep = sleep
        self.close = close

    @classmethod
    def sagemaker(cls, endpoint_name: str, *, runtime: Any = None, retry: Retry = RETRY) -> Self:
        """As DecisionClient.sagemaker."""
        found = runtime or sagemaker_runtime()
        # asyncio's own threads are few on a small machine.
        threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="decision")

        async def send(body: bytes) -> bytes:
            return await asyncio.get_running_loop().run_in_executor(threads, _invoke, found, endpoint_name, body)

        async def close() -> None:
            threads.shutdown(wait=False, cancel_futures=True)

        return cls(send, f"endpoint {endpoint_name}", retry=retry, close=close)

    @classmethod
    def http(cls, url: str, *, api_key: str | None = None, retry: Retry = RETRY) -> Self:
        """As DecisionClient.http."""
        client = httpx.AsyncClient(**_http_settings(api_key))
        address = _invocations(url)

        async def send(body: bytes) -> bytes:
            try:
                answer = await client.post(address, content=body)
            except httpx.HTTPError as error:
                raise _http_error(url, error) from error
            return _http_answer(answer)

        return cls(send, url, retry=retry, close=client.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def decide(self, decision: Mapping[str, Any]) -> dict[str, Any]:
        """As DecisionClient.decide."""
        return _result(await self.invoke({"decision": decision}))

    async def decide_all(self, decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As DecisionClient.decide_all."""
        return await self.invoke({"decisions": list(decisions)})

    async def invoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """As DecisionClient.invoke."""
        sent = _json(body)
        spent, attempts = 0.0, 0
        while True:
            begun = time.monotonic()
            try:
                return _object(await self._send(sent))
            except DecisionError as error:
                attempts += 1
                error.attempts = attempts
                spent += time.monotonic() - begun
                pause = self._retry.pause(error, spent)
                if pause is None:
                    raise
            await self._sleep(pause)
            spent += pause


def sagemaker_runtime() -> Any:
    """A boto3 client that leaves retries to `Retry`. Raises botocore's errors where there is no region."""
    return boto3.client(
        "sagemaker-runtime",
        config=Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            max_pool_connections=CONNECTIONS,
        ),
    )


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"what is asked is no JSON: {error}") from error


def finite(number: str) -> float:
    """A number of JSON, which has no NaN, and none so large that it would be read as Infinity. Raises ValueError."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no finite number")
    return value


def _object(content: bytes) -> dict[str, Any]:
    try:
        said = json.loads(content, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise DecisionError("what answers is no decision endpoint: its answer is no JSON") from error
    if not isinstance(said, dict):
        raise DecisionError("what answers is no decision endpoint: its answer is no JSON object")
    return said


def _result(answer: Mapping[str, Any]) -> dict[str, Any]:
    result = answer.get("result")
    if not isinstance(result, dict):
        raise DecisionError("what answers is no decision endpoint: its answer has no 'result'")
    return result


def _refused(status: int, content: str, retry_after: float | None = None) -> DecisionError:
    """The error of a container's or an adapter's own answer."""
    return DecisionError(
        _reason(status, content),
        status=status,
        retryable=status in (_NO_ANSWER, *_RETRYABLE),
        retry_after=retry_after,
    )


def _reason(status: int, content: str) -> str:
    """The sentence in an answer, in the shapes of all the APIs that an adapter answers."""
    try:
        said = json.loads(content)
        error = said.get("error", said.get("detail"))
        found = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        found = None
    if isinstance(found, str) and found:
        return found
    text = (json.dumps(found, ensure_ascii=False) if found else " ".join(content.split()))[:_LONGEST_TEXT]
    return f"status {status}: {text}" if text else f"status {status} without a reason"


def _invoke(runtime: Any, name: str, body: bytes) -> bytes:
    try:
        content: bytes = runtime.invoke_endpoint(EndpointName=name, ContentType=_JSON, Body=body)["Body"].read()
    except ClientError as error:
        raise _aws_refusal(error) from error
    except BotoCoreError as error:
        raise _aws_failure(error) from error
    return content


def _aws_refusal(error: ClientError) -> DecisionError:
    response: Mapping[str, Any] = error.response
    code = response.get("Error", {}).get("Code", "")
    if code == _MODEL_ERROR:
        # The container's answer; its headers, Retry-After among them, SageMaker does not pass on.
        return _refused(int(response.get("OriginalStatusCode", _NO_ANSWER)), response.get("OriginalMessage", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    sentence = aws_sentence(error)
    if code in _THROTTLED or code == _NOT_READY or (status or 0) >= _SERVER_ERROR:
        return DecisionError(sentence, status=status, retryable=True)
    # The code of a wrong request is that of a wrong name, too.
    if code == "ValidationError" and "not found" not in sentence:
        return DecisionError(sentence, status=status)
    return UnreachableError(sentence, status=status)


def _aws_failure(error: BotoCoreError) -> DecisionError:
    sentence = aws_sentence(error)
    if isinstance(error, botocore.exceptions.HTTPClientError | botocore.exceptions.IncompleteReadError):
        return DecisionError(sentence, retryable=True)  # connected, and no answer
    no_connection = isinstance(error, botocore.exceptions.ConnectionError)
    return UnreachableError(sentence, retryable=no_connection and not isinstance(error, botocore.exceptions.SSLError))


def _invocations(url: str) -> httpx.URL:
    try:
        address = httpx.URL(f"{url.rstrip('/')}/invocations")
    except httpx.InvalidURL as error:
        raise UsageError(f"{url!r} is no address: {error}") from error
    if address.scheme not in ("http", "https") or not address.host or (address.port or 0) > _HIGHEST_PORT:
        raise UsageError(f"{url!r} is no address of an adapter, such as http://127.0.0.1:8080")
    return address


def _http_settings(api_key: str | None) -> dict[str, Any]:
    key = os.environ.get(KEY_VARIABLE) if api_key is None else api_key
    # The message of the library below would show it.
    if key and (not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError(f"the API key ({KEY_VARIABLE}) holds what no header can: spaces, line breaks or non-ASCII")
    return {
        "headers": {"Content-Type": _JSON, **({"Authorization": f"Bearer {key}"} if key else {})},
        "timeout": httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
        "limits": httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
    }


def _http_error(url: str, error: httpx.HTTPError) -> DecisionError:
    reason = f"{url} does not answer: {error or type(error).__name__}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return UnreachableError(reason, retryable=True)
    return DecisionError(reason, retryable=isinstance(error, httpx.TransportError))


def _http_answer(answer: httpx.Response) -> bytes:
    if answer.status_code == httpx.codes.OK:
        return answer.content
    error = _refused(answer.status_code, answer.text, _seconds(answer.headers.get("Retry-After")))
    if answer.status_code in _FOR_NOBODY:
        raise UnreachableError(error.reason, status=answer.status_code)
    raise error


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds: a number of them or a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=timezone.utc)
    return max(0.0, (until - datetime.now(timezone.utc)).total_seconds())
