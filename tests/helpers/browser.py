"""A headless Chromium for the tests of pages; they are left out where none is installed."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
needed = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium with its chromedriver is installed"
)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A driver that logs what the page complains of, and what it asks of the network."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=DRIVER)
    )
    try:
        yield driver
    finally:
        driver.quit()


def look_like(driver: Any, width: int, scheme: str) -> None:
    """A window of that width, in a system that is light or dark."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
