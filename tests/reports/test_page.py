"""The page in a real browser: nothing is asked of the network, nothing complains, tables sort."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import chromium, needed
from selenium.webdriver.support.ui import WebDriverWait
from written_runs import CLIENTS, make_run

from fedhet.reports.report import report

pytestmark = needed
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two settings, with methods whose order is not that of their accuracy."""
    folder = tmp_path_factory.mktemp("page")
    for seed in range(2):
        for height, method in ((9.0, "standalone"), (10.0, "fedssa"), (1.0, "fedproto")):
            tests = [[height + seed] * CLIENTS, [height + seed + 1] * CLIENTS]
            make_run(folder / "runs", method, seed, tests)
            make_run(folder / "runs", method, seed, tests, lr=0.1, name=f"{method}-{seed}-lr")
    report([folder / "runs"], folder / "out")
    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Any]:
    with chromium() as driver:
        driver.get(page.as_uri())
        yield driver


def test_the_page_asks_for_nothing_and_complains_of_nothing(browser, page):
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in asked  # the log works
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.querySelectorAll('figure svg').length") > 8
    headings = browser.execute_script(
        "return [...document.querySelectorAll('figure')].map(f => f.querySelectorAll('svg').length)"
    )
    assert all(headings)  # a figure that is absent leaves no heading
    data = browser.execute_script("return JSON.parse(document.getElementById('data').textContent)")
    assert len(data["settings"]) == 2 and len(data["settings"][0]["arms"]) == 3


def column(browser, table: str, number: int) -> list[str]:
    return browser.execute_script(
        "return [...document.getElementById(arguments[0]).parentElement"
        ".querySelector(`h3[id='${arguments[0]}'] ~ .scroll table`).tBodies[0].rows]"
        ".map(row => row.cells[arguments[1]].textContent)",
        table, number,
    )  # fmt: skip


def press(browser, table: str, number: int) -> str:
    """Press a heading; returns what the table then says of its order."""
    return browser.execute_script(
        "const head = document.querySelector(`h3[id='${arguments[0]}'] ~ .scroll table`)"
        ".tHead.rows[0].cells[arguments[1]]; head.querySelector('button').click();"
        "return head.getAttribute('aria-sort')",
        table, number,
    )  # fmt: skip


def test_a_glance_has_verdict_pictures_and_table_and_the_rest_is_closed(browser):
    script = "return [...document.querySelectorAll('h1, h2')].map(h => h.textContent)"
    assert browser.execute_script(script) == [
        "fedhet report", "Paired differences to Standalone", "Accuracy against traffic",
        "Methods and settings", "Details",
    ]  # fmt: skip
    panels = "return document.querySelectorAll('#differences svg').length"
    assert browser.execute_script(panels) == 2  # one a setting
    count = "return document.querySelectorAll('details.setting[open]').length"
    assert browser.execute_script(count) == 0
    browser.execute_script("document.querySelector('thead a').click()")
    WebDriverWait(browser, 10).until(lambda b: b.execute_script(count) == 1)
    opened = "return document.querySelector('details.setting[open]').id"
    assert browser.execute_script(opened) in browser.current_url


def test_the_first_column_and_the_heading_stay_while_the_table_moves(browser):
    name = browser.execute_script("return document.querySelector('h3[id^=accuracy-]').id")
    places = browser.execute_script(
        "const box = document.querySelector(`h3[id='${arguments[0]}'] ~ .scroll`);"
        "box.closest('details').open = true;"
        "box.style.width = '160px'; box.style.height = '90px';"
        "box.scrollTo(120, 60);"
        "const at = e => e.getBoundingClientRect(), table = box.querySelector('table');"
        "const found = [box.scrollLeft, box.scrollTop,"
        " at(table.tBodies[0].rows[1].cells[0]).left - at(box).left,"
        " at(table.tHead.rows[0].cells[0]).top - at(box).top];"
        "box.removeAttribute('style'); return found", name,
    )  # fmt: skip
    assert places[0] > 0 and places[1] > 0
    assert abs(places[2]) <= 2 and abs(places[3]) <= 2


def test_tables_sort_by_their_headings(browser):
    name = browser.execute_script("return document.querySelector('h3[id^=accuracy-]').id")
    assert column(browser, name, 0) == ["Standalone", "FedProto", "FedSSA"]
    assert press(browser, name, 2) == "descending"
    # 11.50 before 9.50: numbers, not their text
    assert column(browser, name, 0) == ["FedSSA", "Standalone", "FedProto"]
    assert press(browser, name, 2) == "ascending"
    assert column(browser, name, 0) == ["FedProto", "Standalone", "FedSSA"]
    assert press(browser, name, 0) == "ascending"
    assert column(browser, name, 0) == ["FedProto", "FedSSA", "Standalone"]


def test_the_page_fits_a_phone_and_follows_the_system_into_the_dark(browser):
    script = "return [document.documentElement.scrollWidth, getComputedStyle(document.body)"
    script += ".backgroundColor]"
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    colours = []
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        width, colour = browser.execute_script(script)
        assert width == 390
        colours.append(colour)
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 24, 29)"]
