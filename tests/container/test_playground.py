"""The playground as people use it: in a browser, by keyboard, on a phone, by a link that somebody else wrote."""

from __future__ import annotations

import ast
import contextlib
import http.client
import io
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

import boto3
import httpx
import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.container.conftest import KEY, ROOT, Server, running_adapter
from tools.browser import browser, resize

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
WAIT_SECONDS = 120  # generous: the machine may be busy
DESKTOP, PHONE = (1280, 900), (360, 740)
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def adapter(embedded_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An adapter with the playground."""
    log = tmp_path_factory.mktemp("log") / "adapter.log"
    with running_adapter(embedded_dir, log, SEMIF_PLAYGROUND="1") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(embedded_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An adapter with the playground that wants `KEY` and is busy with one decision."""
    log = tmp_path_factory.mktemp("log") / "adapter.log"
    settings = {"SEMIF_PLAYGROUND": "1", "SEMIF_API_KEY": KEY, "SEMIF_MAX_IN_FLIGHT": "1"}
    with running_adapter(embedded_dir, log, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chrome]:
    with browser(width=DESKTOP[0], height=DESKTOP[1]) as driver:
        yield driver


class Page:
    """The playground in a browser."""

    def __init__(self, driver: Chrome, origin: str) -> None:
        self.driver = driver
        self.origin = origin
        self._events: list[dict[str, Any]] = []

    def open(self, form: dict[str, Any] | None = None) -> None:
        """Load it anew, with a form in the address or with the example."""
        self.driver.get("about:blank")  # only the fragment changed, nothing would be loaded
        self.driver.get(f"{self.origin}/" + (f"#{quote(json.dumps(form))}" if form else ""))

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def press(self, *keys: str) -> None:
        """Type into whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """The accessible name of what has the focus."""
        return str(self.driver.switch_to.active_element.accessible_name)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for a condition; its value."""
        return WebDriverWait(self.driver, WAIT_SECONDS, poll_frequency=0.05).until(lambda _: condition())

    def ask(self) -> None:
        """Ctrl and Enter, whatever has the focus; returns when the answer or an error is there."""
        ActionChains(self.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
        self.until(lambda: self.one("#ask").text == "Ask" and self.one("#status").text != "Asking…")

    def bars(self) -> list[dict[str, float]]:
        """For each question the probabilities behind its bars, by option."""
        script = """return [...document.querySelectorAll("#results .card")].map((card) => Object.fromEntries(
            [...card.querySelectorAll(".bars li")].map((bar) =>
                [bar.querySelector(".name").textContent, bar.querySelector("data").value])))"""
        cards = cast("list[dict[str, str]]", self.driver.execute_script(script))
        return [{name: float(value) for name, value in card.items()} for card in cards]

    def copied(self, kind: str) -> str:
        """What a copy button gives."""
        self.one(f"[data-copy={kind}]").click()
        self.until(lambda: self.one("#copied").text)
        return str(self.one("#code").get_attribute("textContent"))

    def events(self, method: str) -> list[dict[str, Any]]:
        """What the browser's network has done since the page object was made."""
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            self._events.append(json.loads(entry["message"])["message"])
        return [event["params"] for event in self._events if event["method"] == method]

    def last_exchange(self) -> tuple[str, dict[str, Any]]:
        """The body last sent to `invocations`, as text, and the answer's."""
        sent = [e for e in self.events("Network.requestWillBeSent") if e["request"]["url"].endswith("/invocations")][-1]
        body = self.driver.execute_cdp_cmd("Network.getResponseBody", {"requestId": sent["requestId"]})
        return sent["request"]["postData"], json.loads(body["body"])

    def violations(self) -> list[str]:
        """What axe finds wrong."""
        self.driver.execute_script(AXE.read_text())
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")
        return [f"{rule['id']}: {[node['html'] for node in rule['nodes']]}" for rule in found["violations"]]

    def emulate(self, **features: str) -> None:
        """Media features, such as prefers_color_scheme="dark"."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})


@pytest.fixture
def page(chromium: Chrome, adapter: Server) -> Iterator[Page]:
    """The playground with its example. Afterwards: whatever a test did, nothing was asked of anybody else."""
    with _page(chromium, adapter) as opened:
        yield opened


@pytest.fixture
def guarded_page(chromium: Chrome, guarded: Server) -> Iterator[Page]:
    """The playground of `guarded`."""
    with _page(chromium, guarded) as opened:
        yield opened


@contextmanager
def _page(chromium: Chrome, server: Server) -> Iterator[Page]:
    chromium.get_log("performance")  # type: ignore[no-untyped-call] # what was before is none of its business
    chromium.get_log("browser")  # type: ignore[no-untyped-call]
    page = Page(chromium, server.url)
    page.open()
    yield page
    addresses = {urlsplit(event["request"]["url"]) for event in page.events("Network.requestWillBeSent")}
    web = {address.netloc for address in addresses if address.scheme not in ("data", "about")}
    assert web == {urlsplit(server.url).netloc}
    console = [entry["message"] for entry in chromium.get_log("browser")]  # type: ignore[no-untyped-call]
    assert [line for line in console if "Failed to load resource: the server responded" not in line] == []


def test_it_is_off_unless_asked_for(server: Server) -> None:
    assert httpx.get(f"{server.url}/").status_code == 404


def test_one_keypress_answers_the_example_with_the_servers_own_numbers(page: Page) -> None:
    page.ask()
    (result,) = page.last_exchange()[1]["results"]
    assert page.bars() == [dict(zip(result["option_ids"], result["probabilities"], strict=True))]
    assert page.texts("#results data") == [f"{100 * p:.1f} %" for p in result["probabilities"]]
    best = max(zip(result["probabilities"], result["option_ids"], strict=True))[1]
    assert page.texts(".likeliest .name") == [best]
    track = page.one(".track").rect["width"]
    page.until(lambda: page.one(".fill").rect["width"] == pytest.approx(track * result["probabilities"][0], abs=1))
    assert page.one("#model").text == f"{result['model']['name']} on {result['model']['device']}"
    assert page.one("#status").text.startswith(f"Which queue should handle this request? {best}, ")
    # The embedded model would rather say something else, and a reader is told.
    assert result["allowed_token_mass"] < 0.5
    assert f"only {100 * result['allowed_token_mass']:.1f} %" in page.one(".low").text


def test_questions_and_options_by_keyboard_over_one_state(page: Page) -> None:
    page.one("#state").send_keys(" The customer has called twice.")
    page.one("fieldset .description").click()
    page.press(Keys.ENTER, Keys.ENTER, Keys.ENTER, Keys.ENTER)
    page.press(Keys.ENTER)  # behind the last option there is a new one
    assert page.focused() == "Option 4 of question 1"
    page.press("legal")
    page.press(Keys.TAB, Keys.TAB)
    assert page.focused() == "Remove option 4 of question 1"
    page.press(Keys.ENTER)
    assert page.focused() == "Option 3 of question 1"
    page.press(Keys.TAB, Keys.TAB, Keys.TAB, Keys.TAB)
    assert page.focused() == "Add a question"
    page.press(Keys.ENTER)
    assert page.focused() == "Question 2"
    page.press("Is the customer angry?")
    page.ask()

    sent, answer = page.last_exchange()
    one, two = json.loads(sent)["decisions"]
    assert one["state"] == two["state"]
    assert one["state"].endswith("never arrived. The customer has called twice.")
    assert [option["id"] for option in one["options"]] == ["account_access", "billing", "sales"]
    assert two["question"] == "Is the customer angry?"
    assert two["options"] == [{"id": "yes", "description": "yes"}, {"id": "no", "description": "no"}]

    first, second = answer["results"]
    assert second["cached_tokens"] > 0
    assert page.texts("#results h3") == ["Which queue should handle this request?", "Is the customer angry?"]
    for result, facts in zip(answer["results"], page.texts(".facts"), strict=True):
        total, reused = result["input_tokens"], result["cached_tokens"]
        assert facts.startswith(f"{total} tokens: {reused} reused, {total - reused} evaluated")
    reused = first["cached_tokens"] + second["cached_tokens"]
    assert int(page.one("#reused").text) == reused
    assert int(page.one("#evaluated").text) == first["input_tokens"] + second["input_tokens"] - reused
    milliseconds = int(page.one("#server-ms").text)
    assert milliseconds == round(1000 * answer["timing"]["total_seconds"])
    assert int(page.one("#round-trip-ms").text) >= milliseconds

    page.one("fieldset:last-child .remove-question").send_keys(Keys.ENTER)
    assert page.focused() == "Question 1"


def test_hostile_text_stays_text(page: Page) -> None:
    options = [{"id": HOSTILE + str(number), "description": HOSTILE} for number in range(2)]
    page.open({"state": HOSTILE, "questions": [{"question": HOSTILE, "options": options}], "calibration": HOSTILE})
    page.ask()
    assert HOSTILE in page.one("#status").text  # there is no calibration of this name
    page.one("#calibration").clear()
    page.ask()
    assert page.texts("#results h3") == [HOSTILE]
    assert list(page.bars()[0]) == [option["id"] for option in options]
    page.copied("curl")
    assert page.all("main img, main script") == []
    assert page.driver.execute_script("return window.hacked") is None


@pytest.mark.parametrize("fragment", ["%", "null", '{"questions": []}', '{"state": 1, "questions": [{}]}', "<b>"])
def test_a_link_that_makes_no_sense_shows_the_example(page: Page, fragment: str) -> None:
    page.driver.get("about:blank")
    page.driver.get(f"{page.origin}/#{fragment}")
    assert str(page.one("#state").get_attribute("value")).startswith("Customer asks to reset a forgotten password")


def test_the_policy_lets_the_page_do_nothing_else(page: Page, server: Server) -> None:
    tried = page.driver.execute_async_script(
        """const done = arguments[arguments.length - 1];
        const tried = {};
        try { document.body.innerHTML += "<b>"; } catch (error) { tried.markup = error.name; }
        const script = document.createElement("script");
        try { script.textContent = "window.hacked = 1"; } catch (error) { tried.code = error.name; }
        const style = document.createElement("style");
        style.textContent = "body { display: none }";
        document.head.append(style);
        tried.style = getComputedStyle(document.body).display;
        fetch(arguments[0]).catch((error) => { tried.elsewhere = error.name; done(tried); });""",
        f"{server.url}/ping",
    )
    assert tried == {"markup": "TypeError", "code": "TypeError", "style": "block", "elsewhere": "TypeError"}
    page.driver.get_log("browser")  # type: ignore[no-untyped-call] # where Chromium has told of each


def test_a_json_state_is_sent_as_it_was_typed(page: Page) -> None:
    state = '{"b": 12345678901234567890,\n "2": 1.0, "1": null}'
    page.one("#state").clear()
    page.one("#state").send_keys(state)
    assert page.one("#state-kind").text == "Sent as a JSON object."
    page.ask()
    assert f'"state": {state}' in page.last_exchange()[0]
    page.one("#as-text").send_keys(Keys.SPACE)
    assert page.one("#state-kind").text == "Sent as text."
    page.ask()
    assert json.loads(page.last_exchange()[0])["decisions"][0]["state"] == state


def test_advanced_settings_reach_the_server(page: Page) -> None:
    form = {
        "state": "x",
        "questions": [{"question": "y", "options": [{"id": "a", "description": ""}, {"id": "b", "description": ""}]}],
        "layout": "criteria-first",
        "permutations": "2",
        "calibration": "support",
    }
    page.open(form)
    page.ask()
    (result,) = page.last_exchange()[1]["results"]
    assert (result["prompt_version"], result["permutations"]["orders"]) == ("criteria-first-v1", 2)
    facts = page.one(".facts").text
    assert f"2 orders, up to {100 * max(result['permutations']['spread']):.1f} % apart" in facts
    assert "calibrated by 'support'" in facts


def test_a_phone_shows_one_column_and_scrolls_down_only(page: Page) -> None:
    resize(page.driver, *PHONE)
    try:
        word = "Donaudampfschifffahrtsgesellschaft" * 4
        options = [{"id": word, "description": word}, {"id": "b", "description": ""}]
        page.open({"state": word, "questions": [{"question": word, "options": options}] * 2})
        page.ask()
        page.copied("boto3")
        width = page.driver.execute_script("return document.documentElement.scrollWidth")
        assert width == PHONE[0]
        form, results = page.one("#form").rect, page.one(".results").rect
        assert results["y"] >= form["y"] + form["height"]
        assert page.violations() == []
    finally:
        resize(page.driver, *DESKTOP)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_empty_the_answered_and_the_faulty_page(page: Page, scheme: str) -> None:
    page.emulate(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    assert page.violations() == []
    page.ask()
    page.copied("curl")
    page.driver.execute_script("document.querySelector('#key-row').hidden = false")
    assert page.violations() == []
    page.one("fieldset .question").clear()
    page.ask()
    assert page.violations() == []
    page.emulate()


@pytest.mark.parametrize(
    ("change", "field", "place", "sentence"),
    [
        ({"state": ""}, "State", "#state-error", "decisions.0.state: "),
        ({"question": ""}, "Question 1", "fieldset .error", "decisions.0.question: "),
        ({"id": ""}, "Option 2 of question 1", "fieldset .error", "decisions.0.options.1.id: "),
        ({"id": "a"}, "Option 1 of question 1", "fieldset .error", "option id 'a' occurs twice"),
    ],
)
def test_what_is_wrong_is_said_where_it_is(
    page: Page, change: dict[str, str], field: str, place: str, sentence: str
) -> None:
    values = {"state": "x", "question": "y", "id": "b", **change}
    options = [{"id": "a", "description": "d"}, {"id": values["id"], "description": "e"}]
    page.open({"state": values["state"], "questions": [{"question": values["question"], "options": options}]})
    page.ask()
    assert sentence in page.one(place).text
    assert page.focused() == field
    assert page.driver.switch_to.active_element.get_attribute("aria-invalid") == "true"


def test_what_belongs_nowhere_is_said_beside_the_button(page: Page) -> None:
    page.one("#advanced summary").send_keys(Keys.ENTER)
    page.one("#permutations").clear()
    page.one("#permutations").send_keys("9")
    page.ask()
    assert "permutations" in page.one("#status.error").text


def test_a_key_is_asked_for_when_it_is_needed_and_kept_in_memory_only(guarded_page: Page) -> None:
    page = guarded_page
    assert not page.one("#key").is_displayed()
    page.ask()
    assert "an API key is needed" in page.one("#key-error").text
    assert page.focused().startswith("API key")
    page.press("wrong")
    page.ask()
    assert "not the one" in page.one("#key-error").text
    page.one("#key").clear()
    page.one("#key").send_keys(KEY)
    page.ask()
    assert len(page.bars()) == 1
    for kind in ("curl", "typesafe", "link"):
        assert KEY not in page.copied(kind)
    # The key reaches the program by its environment.
    assert _run_curl(page.copied("curl"), SEMIF_API_KEY=KEY)["results"][0]["id"] == "question-1"
    assert _run_python(page.copied("typesafe"), SEMIF_API_KEY=KEY).startswith("question-1 ")
    kept = "return [localStorage.length, sessionStorage.length, document.cookie]"
    assert page.driver.execute_script(kept) == [0, 0, ""]
    page.driver.refresh()
    assert page.one("#key").get_attribute("value") == ""


def test_a_busy_server_is_asked_again_when_it_says(guarded_page: Page, guarded: Server) -> None:
    page = guarded_page
    page.ask()
    page.one("#key").send_keys(KEY)
    # The page's clock is the test's: how long it would wait is seen, and not waited for.
    page.driver.execute_script("window.setTimeout = (action, ms) => { window.clock = { action, ms }; }")
    with _one_decision_under_way(guarded):
        ActionChains(page.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
        status = page.until(lambda: (text := page.one("#status").text).startswith("busy") and text)
        waited = [
            {name.lower(): value for name, value in event["response"]["headers"].items()}["retry-after"]
            for event in page.events("Network.responseReceived")
            if event["response"]["status"] == 503
        ]
        assert f"Asking again in {waited[-1]} s (attempt " in status
        assert page.driver.execute_script("return window.clock.ms") == 1000 * int(waited[-1])
        assert page.one("#ask").text == "Stop"
    page.driver.execute_script("window.clock.action()")
    page.until(lambda: page.one("#ask").text == "Ask")
    assert len(page.bars()) == 1


@contextmanager
def _one_decision_under_way(server: Server) -> Iterator[None]:
    """A prompt that takes long; its caller leaves at the end, and the server has dropped it."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    options = [{"id": "a", "description": "a"}, {"id": "b", "description": "b"}]
    decision = {"id": "long", "state": "word " * 5000, "question": "q", "options": options}
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    connection.request("POST", "/invocations", json.dumps({"decision": decision}), headers)
    _until_idle(server, headers, idle=False)
    try:
        yield
    finally:
        connection.close()
    _until_idle(server, headers, idle=True)


def _until_idle(server: Server, headers: dict[str, str], *, idle: bool) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while ("adapter_queue_depth 0.0" in httpx.get(f"{server.url}/metrics", headers=headers, timeout=30).text) != idle:
        assert time.monotonic() < deadline
        time.sleep(0.02)


TRICKY = {
    "state": 'It\'s "quoted" \\n, $HOME `id` \'JSON\'\nJSON\n\ttab """ 🙂 {x} %s é',
    "questions": [
        {
            "question": 'What\'s "it"?',
            "options": [{"id": "a'\"\\", "description": "$x"}, {"id": "b", "description": ""}],
        },
        {"question": "And?", "options": [{"id": "yes", "description": ""}, {"id": "no", "description": "\u2028"}]},
    ],
}
STRUCTURED = {**TRICKY, "state": '{"b": [1.50, 12345678901234567890, true, null, "\\u00e9\'"],\n "1": "x"}'}


@pytest.mark.parametrize("form", [TRICKY, STRUCTURED], ids=["text", "json"])
def test_what_is_copied_runs_and_gives_the_same_answer(page: Page, adapter: Server, form: dict[str, Any]) -> None:
    page.open(form)
    page.ask()
    shown = page.bars()
    assert len(shown) == 2

    results = _run_curl(page.copied("curl"))["results"]
    assert [dict(zip(r["option_ids"], r["probabilities"], strict=True)) for r in results] == shown

    with _invoke_endpoint(adapter) as address:
        printed = _run_python(page.copied("boto3"), AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME=address)
    assert _printed(printed) == shown

    assert _printed(_run_python(page.copied("typesafe"))) == shown


def test_a_link_carries_the_form_and_the_clipboard_what_was_copied(page: Page) -> None:
    page.open(STRUCTURED)
    page.one("#as-text").click()
    rights = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.origin}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", rights)
    link = page.copied("link")
    assert page.one("#copied").text == "Copied."
    read = "navigator.clipboard.readText().then(arguments[0])"
    assert page.driver.execute_async_script(read) == link
    page.driver.get("about:blank")
    page.driver.get(link)
    assert page.one("#state").get_attribute("value") == STRUCTURED["state"]
    assert page.one("#as-text").is_selected()
    assert page.one(".option .id").get_attribute("value") == "a'\"\\"


def _run_curl(snippet: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        ["bash", "-c", snippet], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _run_python(snippet: str, **environment: str) -> str:
    """What the snippet prints. In this process, where its imports cost nothing any more."""
    credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        for name, value in {**credentials, **environment}.items():
            patch.setenv(name, value)
        patch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the environment of its first use
        exec(compile(snippet, "copied", "exec"), {})  # noqa: S102 - that it runs is the point
    return printed.getvalue()


def _printed(output: str) -> list[dict[str, float]]:
    """The probabilities of a snippet's lines `ID {option: probability, ...}`."""
    return [ast.literal_eval(line.partition(" ")[2]) for line in output.splitlines()]


@contextmanager
def _invoke_endpoint(adapter: Server) -> Iterator[str]:
    """SageMaker's data plane as far as one endpoint goes: what it passes on to the container. Its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/endpoints/decision-endpoints-local-decision/invocations"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {"Content-Type": self.headers["Content-Type"]}
            answer = httpx.post(f"{adapter.url}/invocations", content=body, headers=headers, timeout=120)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as plane:
        threading.Thread(target=plane.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{plane.server_port}"
        plane.shutdown()
