"""`make screenshot`: the README's pictures of the playground, by day and by night."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tools.browser import browser, resize
from tools.setup import MODELS, ROOT

IMAGES = ROOT / "docs" / "images"
WIDTH = 1100
WAIT_SECONDS = 120

FORM = """{
  "state": "Customer asks to reset a forgotten password and says the reset email never arrived.",
  "questions": [
    {
      "question": "Which queue should handle this request?",
      "options": [
        {"id": "account_access", "description": "Account access and authentication support."},
        {"id": "billing", "description": "Billing and payment support."},
        {"id": "sales", "description": "Sales and product evaluation."}
      ]
    },
    {
      "question": "Has the customer waited for something that did not come?",
      "options": [{"id": "yes", "description": ""}, {"id": "no", "description": ""}]
    }
  ]
}"""


def main() -> int:
    """Write docs/images/playground.png and playground-dark.png."""
    IMAGES.mkdir(exist_ok=True)
    with _adapter() as url, browser(width=WIDTH, height=WIDTH) as driver:
        driver.get(f"{url}/#{quote(FORM)}")
        driver.find_element(By.ID, "state").send_keys(Keys.CONTROL, Keys.ENTER)
        WebDriverWait(driver, WAIT_SECONDS).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#results .card"))
        driver.execute_script("document.activeElement.blur()")
        resize(driver, WIDTH, driver.execute_script("return document.body.offsetHeight"))
        for scheme, file in (("light", "playground.png"), ("dark", "playground-dark.png")):
            _picture(driver, scheme, str(IMAGES / file))
    return 0


def _picture(driver: Chrome, scheme: str, file: str) -> None:
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.save_screenshot(file)


@contextmanager
def _adapter() -> Iterator[str]:
    """An adapter with the embedded model and the playground; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "SEMIF_HOST": "127.0.0.1",
        "SEMIF_PORT": str(port),
        "SEMIF_GGUF_PATH": str(MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"),
        "SEMIF_PLAYGROUND": "1",
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "container"), **settings}
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, "-m", "adapter", "serve"], env=environment) as process:
        try:
            _wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/ping", timeout=5).close()  # noqa: S310 - our own address
        except OSError:
            time.sleep(0.2)
        else:
            return
    sys.exit("screenshot: the adapter did not start; what it printed says why")


if __name__ == "__main__":
    sys.exit(main())
