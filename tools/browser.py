"""Debian's Chromium without a window, for the playground's tests and its picture."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

_PHONE = 500  # CSS pixels: narrower pages are shown as a phone shows them


@contextmanager
def browser(*, width: int, height: int) -> Iterator[Chrome]:
    """A browser with a fresh profile, a page of `width` by `height` CSS pixels, and logs of its console and network."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    # Nothing of its own may go out, and what it would fetch in the background only costs time.
    for switch in ("disable-background-networking", "disable-component-update", "disable-quic", "disable-sync"):
        options.add_argument(f"--{switch}")
    for switch in ("headless", "disable-gpu", "no-first-run", "hide-scrollbars"):
        options.add_argument(f"--{switch}")
    if os.geteuid() == 0:  # Chromium refuses root otherwise
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        # The driver's path given, selenium looks for none and downloads none.
        driver = Chrome(options, ChromeService(shutil.which("chromedriver") or "chromedriver"))
        try:
            resize(driver, width, height)
            yield driver
        finally:
            driver.quit()


def resize(driver: Chrome, width: int, height: int) -> None:
    """Give the page this many CSS pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < _PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
