"""`fedhet node --check` against a server that answers what a test wants, over TLS."""

import shutil

import pytest
from PIL import Image

from fedhet.cli.app import execute
from fedhet.deploy.certs import make

# Flower's codes: a heartbeat interval out of bounds, which is asked for a known key; no such key.
KNOWN, UNKNOWN = b'{"code": 2003}', b'{"code": 2004}'


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    for number in range(4):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "own.csv").write_text("a\x1b[2J,b\u202e\n1,2\n")
    return tmp_path


@pytest.fixture
def server(home, serve):
    made = serve(make(home / "tls", ["127.0.0.1"], ["a"]), status=400, body=KNOWN)
    made.home = home
    return made


@pytest.fixture
def check(server, capsys):
    """Call the check: exit code, what is wrong by name, and all that was printed."""

    def call(key="tls/clients/a", data="images", more=()):
        words = ["node", str(server.home / key), "--server", server.where, "--data",
                 str(server.home / data), "--check", *more]  # fmt: skip
        code = execute(words)
        said = capsys.readouterr()
        found = dict(line.split(": ", 1) for line in said.out.splitlines() if ": " in line)
        wrong = {what.split()[1]: text for what, text in found.items() if what.startswith("WRONG")}
        assert len(said.err.strip().splitlines()) == (code != 0) and code == 2 * bool(said.err)
        return wrong, said.out + said.err

    return call


def test_a_node_that_can_join_is_told_so(check, home):
    wrong, said = check()
    assert wrong == {} and not (home / ".fedhet").exists()  # nothing is left of it
    assert "4 images of 2 classes: a, b" in said and "knows this key" in said
    assert "this site: min-class: fewest training" in said and said.count("no limit on") == 9
    wrong, said = check(data="own.csv", more=("--model", "mine:make"))
    assert wrong == {} and "mine:make, which is built when a run begins" in said
    assert "2 columns (" in said and "a?[2J, b?" in said and "\x1b" not in said


def test_what_cannot_be_right_is_named(check, server, home):
    wrong, _ = check(data="own.csv", more=("--model", "mlp-9", "--device", "cuda:99"))
    assert list(wrong) == ["model", "device"] and "did you mean 'mlp-" in wrong["model"]
    wrong, _ = check(data="empty")
    assert list(wrong) == ["examples"] and "empty" in wrong["examples"]
    assert "nowhere' does not exist" in check(data="nowhere")[1]
    for key in ("tls/clients/a.pub", "tls/server.pem"):
        (home / key).chmod(0o600)
        wrong, _ = check(key=key, more=("--ca", str(home / "tls" / "ca.crt")))
        assert list(wrong) == ["key", "admission"]
        assert "not a private key" in wrong["key"] and key in wrong["key"]
    (home / "tls" / "clients" / "a").chmod(0o644)
    assert list(check()[0]) == ["key"]
    (home / "tls" / "clients" / "a").chmod(0o600)
    other = make(home / "other", ["127.0.0.1"], []).ca
    wrong, _ = check(more=("--ca", str(other)))
    assert list(wrong) == ["connection", "admission"] and str(other) in wrong["connection"]
    server.body = UNKNOWN
    wrong, _ = check()
    assert list(wrong) == ["admission"]
    assert "tls/clients/a" in wrong["admission"] and ".pub" in wrong["admission"]
    server.status = 401
    wrong, _ = check()
    assert list(wrong) == ["admission"] and "signature: the clocks differ" in wrong["admission"]


WRONG_LIMITS = (
    ("columns: [a, c]", "examples", "name column 'c', which the file lacks"),
    ("target: ill\ngroup: [patient]", "examples", "name column 'ill', which"),
    ("target: a\nclasses: [x]", "examples", "no class has min-class=5 rows"),
    ("secure-sum: required", None, ""),  # the node has its certificate
    ("max-epoch: 5", "limits", "--limits: '"),
    ("methods: [fedsa]", "limits", "did you mean 'fedssa'"),
    ("modules: [nobodys]", "limits", "modules: 'nobodys' is not installed here"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "what", "says"), WRONG_LIMITS)
def test_limits_are_wrong_that_name_what_the_site_lacks(check, home, text, what, says):
    (home / "limits.yaml").write_text(text)
    (home / "own.csv").write_text("a,b\n1,2\n")
    wrong, _ = check(data="own.csv", more=("--limits", str(home / "limits.yaml")))
    assert list(wrong) == [what] * (what is not None) and says in wrong.get(what, ""), wrong


def test_a_disk_that_is_full(check, home, monkeypatch):
    usage = shutil.disk_usage(home)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5 << 20))
    assert "5 MiB free" in check()[0]["disk"]
