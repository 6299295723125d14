"""The page in a real browser, over a real run that goes on meanwhile."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.browser import chromium, look_like, needed
from network.programs import wait_for
from watch.folders import append, begin, end, failure, line, scores

from fedhet.watch.beside import watcher

pytestmark = [needed, pytest.mark.network]
EVIL = "<img src=x onerror=document.title='evil'>"
RUN = (
    "run quickstart engine=inline clients=2 models=cnn-5 rounds=999 local-epochs=1 out=. --watch "
    "--name live"
)


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


def texts(browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)"
    return browser.execute_script(script, selector)


def press(browser, name: str, number: int) -> list[str]:
    """Press a heading of a table; the first column then."""
    script = "document.querySelectorAll(arguments[0])[arguments[1]].click()"
    browser.execute_script(script, f"#{name} th button", number)
    return texts(browser, f"#{name} tbody tr td:first-child")


def open_page(browser, where: str, ready: str) -> None:
    browser.get(where)
    wait_for(lambda: bool(texts(browser, ready)), f"{ready} is drawn")


def told_address(said: Path) -> str:
    found = re.search(r"watch it at (\S+)", said.read_text())
    return found[1] if found else ""


def test_a_run_is_watched_while_it_goes_on_and_after_its_end(tmp_path, browser):
    said = tmp_path / "said"
    with said.open("w") as log:
        run = subprocess.Popen(
            [sys.executable, "-m", "fedhet", *RUN.split()], cwd=tmp_path, stderr=log, stdout=log
        )
    try:
        wait_for(lambda: told_address(said), "the run says where its page is")
        open_page(browser, told_address(said), "#facts dd")
        wait_for(lambda: len(texts(browser, "#rounds tbody tr")) > 1, "two rounds are shown")
        assert texts(browser, "#status") == ["running"]
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    finally:
        run.kill()
        run.wait()
    wait_for(lambda: "has ended" in texts(browser, "#link")[0], "the page says that we are gone")
    assert texts(browser, "#rounds tbody tr")  # and still shows the last
    with watcher(tmp_path / "live") as where:
        open_page(browser, where, "#rounds tbody tr")
        assert (texts(browser, "#status"), texts(browser, "#says")) == (["stopped"], ["SIGINT"])
        assert len(texts(browser, "svg path")) == 6
        assert texts(browser, "#clients tbody tr td:first-child") == ["0", "1"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A sweep of two runs that a stranger sent, one with names that would be markup."""
    folder = tmp_path_factory.mktemp("sent")
    place = folder / "sweeps" / "p"
    place.mkdir(parents=True)
    cells = [
        {"name": name, "values": {"method": EVIL, "seed": k}, "state": "pending", "reason": EVIL}
        for k, name in enumerate(("a", "b"))
    ]
    (place / "sweep.json").write_text(json.dumps({"cells": cells}))
    for name in ("a", "b"):
        begin(folder / name, rounds=40)
    failures = [failure(EVIL, EVIL)]
    append(folder / "a" / "rounds.jsonl", "".join(line(r, failures=failures) for r in range(1, 41)))
    append(folder / "a" / "clients.csv", scores((40, "0", 9.0), (40, "10", 80.0), (40, "2", 10.0)))
    end(folder / "a", 40, reason=EVIL)
    with watcher(folder) as where:
        yield where


def test_it_asks_only_where_it_comes_from_and_complains_of_nothing(page, browser):
    browser.get("about:blank")  # what an earlier page asks again and again ends with it
    browser.get_log("performance"), browser.get_log("browser")
    open_page(browser, page, "#grids td a")
    open_page(browser, page + "run/a/", "#rounds tbody tr")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith((page, "data:"))} == set()
    assert {page + "events", page + "run/a/events", page + "page.js"} <= asked
    assert browser.get_log("browser") == []


def test_names_are_text(page, browser):
    open_page(browser, page, "#grids td a")
    assert texts(browser, "#grids tbody th") == [EVIL]
    browser.find_element("css selector", "#grids td a").click()
    wait_for(lambda: texts(browser, "#failures tbody tr"), "the run's page is there")
    assert EVIL in texts(browser, "#failures tbody td")
    assert browser.execute_script("return document.images.length") == 0
    assert browser.title == "completed: a"


def test_tables_sort_and_curves_are_read_by_keyboard(page, browser):
    open_page(browser, page + "run/a/", "#rounds tbody tr")
    assert texts(browser, "#clients tbody tr td:first-child") == ["0", "1", "2", "10", EVIL]
    assert press(browser, "clients", 4)[:3] == ["10", "2", "0"]  # by accuracy
    assert press(browser, "clients", 4)[:3] == ["0", "2", "10"]
    slider = browser.find_element("css selector", "#cursor input")
    assert texts(browser, "#cursor output") == ["40"]
    slider.send_keys("\ue012" * 3)  # arrow left
    assert texts(browser, "#cursor output") == ["37"]
    assert texts(browser, "figcaption")[0].startswith("test 370.00 %")
    assert slider.get_attribute("aria-valuetext").startswith("round 37: test 370.00 %")
    names = "return [...document.querySelectorAll('.scroll')].map(one => one.tabIndex + one.role)"
    assert set(browser.execute_script(names)) == {"0region"}


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("place", ["", "run/a/"])
def test_it_fits_and_follows_the_system_into_the_dark(page, browser, width, place):
    script = "return [document.documentElement.scrollWidth, getComputedStyle(document.body)"
    script += ".backgroundColor]"
    colours = []
    for scheme in ("light", "dark"):
        look_like(browser, width, scheme)
        open_page(browser, page + place, "tbody tr")
        wide, colour = browser.execute_script(script)
        assert wide <= width
        colours.append(colour)
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 24, 29)"]
