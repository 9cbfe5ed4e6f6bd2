"""What a browser, which signs nothing, gets of an endpoint."""

from __future__ import annotations

import httpx

from tests.emulator.conftest import Hosting


def test_a_browser_sees_the_containers_page_and_asks_through_invoke_endpoint(hosting: Hosting) -> None:
    name = hosting.endpoint(hosting.config(GREETING="hello"))
    address = f"{hosting.emulator.endpoint_url}/endpoints/{name}/"
    page = httpx.get(address)
    assert (page.status_code, page.text, page.headers["content-type"]) == (200, "{}", "application/json")
    assert page.headers["content-security-policy"] == "default-src 'none'"
    asked = httpx.post(f"{address}invocations", json={"a": 1})
    assert (asked.status_code, asked.json()["environment"]["GREETING"]) == (200, "hello")
    refused = httpx.post(f"{address}invocations", json={"status": 503})
    assert (refused.status_code, refused.json()["OriginalStatusCode"]) == (424, 503)


def test_an_endpoint_that_is_not_there_has_no_page(hosting: Hosting) -> None:
    answer = httpx.get(f"{hosting.emulator.endpoint_url}/endpoints/nobody/")
    assert answer.status_code == 404
    assert "nobody is not in service" in answer.text
