"""`make screenshot`: the README's pictures of the playground, by day and by night."""

from __future__ import annotations

import sys
from urllib.parse import quote

from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tools.adapter import running_adapter
from tools.browser import browser, resize
from tools.setup import MODELS, ROOT

IMAGES = ROOT / "docs" / "images"
MODEL = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
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
    with running_adapter(MODEL, SEMIF_PLAYGROUND="1") as adapter, browser(width=WIDTH, height=WIDTH) as driver:
        driver.get(f"{adapter.url}/#{quote(FORM)}")
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


if __name__ == "__main__":
    sys.exit(main())
