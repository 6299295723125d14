"""`fedhet node --check` against a server that answers what a test wants, over TLS."""

import datetime
import errno
import http.server
import json
import re
import shutil
import ssl
import tempfile
import threading
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from PIL import Image

from fedhet.cli.app import execute
from fedhet.deploy.certs import make
from fedhet.deploy.node import NodePlan
from fedhet.deploy.node_check import refuse
from fedhet.errors import UserError

KNOWN, UNKNOWN = 2003, 2004  # Flower's codes: a heartbeat interval out of bounds, no such key


class Answer(http.server.BaseHTTPRequestHandler):
    """Refuses everything, as a SuperLink does that is asked to let in a node."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"code": self.server.code}).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp=None):
        now = datetime.datetime.now(datetime.UTC)
        return format_datetime(now + datetime.timedelta(seconds=self.server.ahead), usegmt=True)

    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A client's folder, and the server that it is to join."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    for folder in ("tls", "other"):
        tls = make(tmp_path / folder, ["127.0.0.1"], ["a"])
    for number in range(4):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(path)
    (tmp_path / "empty").mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.status, server.code, server.ahead = 400, KNOWN, 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls = tmp_path / "tls"
    context.load_cert_chain(tls / "server.pem", tls / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(folder=tmp_path, server=server, where=f"127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def check(site, capsys, *, key="tls/clients/a", data="images", more=()):
    """Exit code, what is wrong by name, and all that was printed."""
    words = ["node", str(site.folder / key), "--server", site.where, "--data",
             str(site.folder / data), "--check", *more]  # fmt: skip
    code = execute(words)
    said = capsys.readouterr()
    findings = dict(line.split(": ", 1) for line in said.out.splitlines() if ": " in line)
    wrong = {what.split()[1]: text for what, text in findings.items() if what.startswith("WRONG")}
    assert len(said.err.strip().splitlines()) == (code != 0)
    return code, wrong, said.out + said.err


def test_a_node_that_can_join_is_told_so(site, capsys):
    code, wrong, said = check(site, capsys)
    assert (code, wrong) == (0, {})
    assert "4 images of 2 classes: a, b" in said and "knows this key" in said
    assert not (site.folder / ".fedhet").exists()  # nothing is left of it


def test_a_model_that_is_nobodys_is_refused_for_rows_too(site, capsys):
    (site.folder / "own.csv").write_text("a,b\n1,2\n")
    code, wrong, _ = check(site, capsys, data="own.csv", more=("--model", "mlp-9"))
    assert code == 2 and list(wrong) == ["model"]
    assert "did you mean 'mlp-" in wrong["model"]
    code, _, said = check(site, capsys, data="own.csv", more=("--model", "mine:make"))
    assert code == 0 and "mine:make, of which nothing can be said" in said
    assert "examples: 2 columns" in said


def test_names_of_columns_are_printed_as_text(site, capsys):
    (site.folder / "own.csv").write_text("a\x1b[2J,b\u202e\n1,2\n")
    code, _, said = check(site, capsys, data="own.csv")
    assert code == 0 and "a?[2J, b?" in said and "\x1b" not in said and "\u202e" not in said


def test_a_key_that_the_server_does_not_know(site, capsys):
    site.server.code = UNKNOWN
    code, wrong, _ = check(site, capsys)
    assert code == 2 and list(wrong) == ["admission"]
    assert "tls/clients/a" in wrong["admission"] and ".pub" in wrong["admission"]


@pytest.mark.parametrize("key", ["tls/clients/a.pub", "tls/server.pem"])
def test_a_file_that_is_no_key(site, capsys, key):
    (site.folder / key).chmod(0o600)
    more = ("--ca", str(site.folder / "tls" / "ca.crt"))
    code, wrong, _ = check(site, capsys, key=key, more=more)
    assert code == 2 and list(wrong) == ["key", "admission"]
    assert "no private key" in wrong["key"] and key in wrong["key"]


def test_a_ca_that_did_not_sign_the_servers_certificate(site, capsys):
    other = site.folder / "other" / "ca.crt"
    code, wrong, _ = check(site, capsys, more=("--ca", str(other)))
    assert code == 2 and list(wrong) == ["connection", "admission"]
    assert str(other) in wrong["connection"]


@pytest.mark.parametrize("ahead", [-60, 3600])
def test_a_clock_that_is_wrong(site, capsys, ahead):
    site.server.ahead, site.server.status = ahead, 401  # the signature is of another time
    code, wrong, _ = check(site, capsys)
    assert code == 2 and list(wrong) == ["connection", "admission"]
    assert "clock" in wrong["connection"] and "clocks differ" in wrong["admission"]


def test_a_folder_that_is_empty_or_missing(site, capsys):
    code, wrong, _ = check(site, capsys, data="empty")
    assert code == 2 and list(wrong) == ["examples"] and "empty" in wrong["examples"]
    code, wrong, said = check(site, capsys, data="nowhere")
    assert code == 2 and "nowhere' is not there" in said


def test_a_disk_that_is_full(site, capsys, monkeypatch):
    usage = shutil.disk_usage(site.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5 << 20))
    code, wrong, _ = check(site, capsys)
    assert code == 2 and "5 MiB left" in wrong["disk"]

    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    code, wrong, _ = check(site, capsys)
    assert code == 2 and "No space left" in wrong["disk"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--model", "cnn-9"), "'cnn-9' is unknown"),
        (("--device", "gpu"), "--device: 'gpu'"),
        (("--device", "cuda:99"), "--device: 'cuda:99'"),
        (("--limits", "limits.yaml"), "--limits: "),
        (("--split", "split.csv"), "split.csv"),
        (("--split", "others.csv"), "no line for client 'a'"),
    ],
)
def test_an_option_that_cannot_be_right_is_refused_before_joining(site, words, names):
    (site.folder / "limits.yaml").write_text("max-epoch: 5\n")
    (site.folder / "split.csv").write_text("a,b\n1,2\n")
    (site.folder / "others.csv").write_text("path,client,split\na/0.png,b,train\n")
    option, value = words
    own = site.folder / value
    config = {"data-dir": str(site.folder / "images"), "name": "a"}
    key = "split-file" if option == "--split" else option.strip("-")
    config[key] = str(own) if own.exists() else value
    plan = NodePlan(site.folder, site.folder, "h:1", config, site.folder / "log")
    with pytest.raises(UserError, match=re.escape(names)):
        refuse(plan)
