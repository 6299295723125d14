"""Who may read the page, and what it is sent: a real server, asked as others would ask it."""

import json
import signal
import subprocess
import sys
from itertools import islice

import httpx
import pytest
from watch.folders import append, begin, failure, line, scores

from fedhet.watch.beside import watcher
from fedhet.watch.run import RunView
from fedhet.watch.server import HEADERS, Sent, address, listen
from fedhet.watch.sweep import SweepView

pytestmark = pytest.mark.network
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = begin(tmp_path_factory.mktemp("watched") / EVIL.replace("/", ""))
    append(run / "rounds.jsonl", line(1, failures=[failure(EVIL, EVIL)]))
    append(run / "clients.csv", scores((1, "0", 10.0)))
    return run


@pytest.fixture(scope="module")
def page(folder):
    """The address of a page, served by a process of its own."""
    with watcher(folder) as where:
        yield where


def test_it_is_a_page_with_a_strict_policy_and_escaped_names(page):
    answer = httpx.get(page)
    assert answer.status_code == 200 and "&lt;img" in answer.text and EVIL not in answer.text
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "access-control-allow-origin" not in answer.headers and "server" not in answer.headers
    assert "http" not in answer.text.replace("http-equiv", "")  # nothing of anybody else
    for name, kind in (("page.js", "text/javascript"), ("page.css", "text/css")):
        assert httpx.get(page + name).headers["content-type"].startswith(kind)


def test_events_bring_everything(page):
    with httpx.stream("GET", page + "events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(islice(answer.iter_lines(), 6))
    assert lines[0] == "event: state" and lines[3] == "event: rounds"
    state = json.loads(lines[1].removeprefix("data: "))
    rounds = json.loads(lines[4].removeprefix("data: "))
    assert state["title"] == "fedssa on digits"
    assert rounds["anew"] and rounds["of"] == 1 and rounds["rows"][0][1] == 10.0


def test_only_get(page):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"):
        answer = httpx.request(method, page)
        assert answer.status_code == 405 and "GET only" in (answer.text or "GET only")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_no_other_page_may_read(page, headers, code):
    for path in ("", "page.js"):
        answer = httpx.get(page + path, headers=headers)
        assert answer.status_code == code
        assert answer.headers["Cache-Control"] == "no-store"
        assert code == 200 or len(answer.text) < 20


def test_its_own_origin_may(page):
    origin = page.rsplit("/", 2)[0]
    assert httpx.get(page, headers={"Origin": origin}).status_code == 200


def test_without_the_token_there_is_nothing(page):
    base, token, _ = page.rsplit("/", 2)
    wrong = ("", "/", "/x/", f"/{token[:-1]}/", f"/{token}x/events", f"/{token.lower()}/events",
             "/page.js", "/%ff/", f"/{token}", f"/{token}/../page.js", f"/{token}/run/x/",
             f"/{token}/..%2f..%2fetc%2fpasswd", f"/{token}/run/..%2f/events")  # fmt: skip
    for path in wrong:
        answer = httpx.get(base + path)
        assert answer.status_code == 404 and len(answer.text) < 20, path


def test_the_command_serves_until_it_is_asked_to_end(folder):
    words = [sys.executable, "-m", "fedhet", "watch", str(folder)]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        where = command.stdout.readline().strip()
        with httpx.stream("GET", where + "events", timeout=60) as answer:
            assert next(answer.iter_lines()) == "event: state"
            command.send_signal(signal.SIGINT)  # while a page is open
            output, said = command.communicate(timeout=60)
    finally:
        command.kill()
        command.wait()
    assert (command.returncode, output) == (0, "")
    assert said == "fedhet: Ctrl-C ends it; the run goes on\n"


def test_it_listens_on_this_machine_alone():
    with listen(0) as found:
        assert found.getsockname()[0] == "127.0.0.1"
        assert address(found, "t").startswith("http://127.0.0.1:")


def test_what_was_sent_is_not_sent_again(tmp_path):
    run = begin(tmp_path / "r")
    view, sent = RunView(run), Sent()
    assert [text.split("\n")[0] for text in sent.new(view.look())] == ["event: state"]
    assert sent.new(view.look()) == []
    append(run / "rounds.jsonl", line(1))
    sent.new(view.look())
    append(run / "rounds.jsonl", line(2))
    rounds = sent.new(view.look())[1]
    told = json.loads(rounds.split("data: ")[1])
    assert (told["anew"], told["of"], [row[0] for row in told["rows"]]) == (False, 2, [2])
    assert Sent().new(SweepView(tmp_path).look())[1:] == []


def test_whoever_watches_waits_for_no_torch():
    code = "import sys, fedhet.watch.beside, fedhet.watch.plain; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
