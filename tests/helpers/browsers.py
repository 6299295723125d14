"""A browser for the tests of pages."""

import contextlib
import shutil

import pytest

needed = pytest.mark.skipif(not shutil.which("chromedriver"), reason="needs chromium")


@contextlib.contextmanager
def dark_phone(profile):
    """Yield a headless Chromium of 400 pixels that prefers the dark and keeps its log."""
    from selenium import webdriver  # late: a second, for two tests

    options = webdriver.ChromeOptions()
    words = "--headless --no-sandbox --disable-gpu --no-proxy-server"
    dark = "--blink-settings=preferredColorScheme=0"
    for word in (*words.split(), dark, f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    try:
        narrow = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        yield browser
    finally:
        browser.quit()
