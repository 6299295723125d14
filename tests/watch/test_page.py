"""Who may read the page, what it is sent, and how a browser shows it: a real server."""

import signal
import subprocess
import sys
import threading
from functools import partial

import httpx
import pytest
from helpers.browsers import dark_phone, needed
from helpers.written_runs import append, begin, end, failure, line, scores

from fedhet.errors import UserError
from fedhet.watch.server import HEADERS, listen, page_server
from fedhet.watch.view import open_view

pytestmark = pytest.mark.network
EVIL = "<img src=x onerror=alert(1)>"
get = partial(httpx.get, timeout=60, trust_env=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = begin(tmp_path_factory.mktemp("watched") / EVIL.replace("/", ""), rounds=9)
    for number in range(1, 6):
        append(run / "rounds.jsonl", line(number, failures=[failure("1", EVIL)] * (number == 2)))
    append(run / "clients.csv", scores((5, "0", 10.0)))
    return run


@pytest.fixture(scope="module")
def page(folder):
    """The address of a page, served from a thread."""
    with listen(0) as listening:
        server, where = page_server(open_view(folder), listening)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield where
        server.should_exit = True
        thread.join(5)


def test_a_page_with_a_strict_policy_and_escaped_names(page):
    answer = get(page)
    assert answer.status_code == 200 and "&lt;img" in answer.text and EVIL not in answer.text
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "access-control-allow-origin" not in answer.headers and "server" not in answer.headers
    for name, kind in (("page.js", "text/javascript"), ("page.css", "text/css")):
        assert get(page + name).headers["content-type"].startswith(kind)
    assert ">fedssa on digits<" in answer.text and "Rounds (5)" in answer.text
    assert httpx.post(page, trust_env=False).status_code == 405


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("", {"Host": "evil.example"}, 421),
        ("", {"Origin": "http://evil.example"}, 403),
        ("", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("run/x/", {}, 404), ("page.html", {}, 404), ("../", {}, 404), ("../a/", {}, 404),
    ],
)  # fmt: skip
def test_what_another_page_or_host_asks_is_refused(page, path, headers, status):
    assert get(page + path, headers=headers).status_code == status


def test_it_listens_here_alone_and_says_when_a_port_is_taken():
    with listen(0) as found:
        assert found.getsockname()[0] == "127.0.0.1"
        with pytest.raises(UserError, match="cannot be used: Address already in use"):
            listen(found.getsockname()[1])


def test_the_command_ends_with_ctrl_c_and_takes_no_proxy(folder):
    words = [sys.executable, "-m", "fedhet", "watch", str(folder)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        where = process.stdout.readline().strip()
        assert get(where).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@needed
def test_in_a_browser_at_400_pixels_in_the_dark(page, folder, tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait  # noqa: PLC0415

    with dark_phone(tmp_path) as browser:
        script, wait = browser.execute_script, WebDriverWait(browser, 30)
        browser.get(page)
        wait.until(
            lambda _: script("return document.querySelectorAll('polyline.curve').length") == 4
        )
        assert script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
        assert script("return document.documentElement.scrollWidth") <= 400
        assert script("return document.querySelectorAll('img').length") == 0
        assert EVIL in script("return document.getElementById('tables').textContent")
        append(folder / "rounds.jsonl", line(6))
        end(folder, 6)
        wait.until(
            lambda _: script("return document.getElementById('status').textContent") == "completed"
        )
        assert "6 of 9" in script("return document.getElementById('facts').textContent")
        assert not browser.get_log("browser")
