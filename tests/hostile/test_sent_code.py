"""A node whose server attacks by code or by names of modules: nothing of it leaves a mark."""

import io
import json
import stat
import zipfile
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from fedhet import __version__
from fedhet.deploy.node import Node, NodePlan, difference
from fedhet.protocol.flower import OTHER_CODE, application, be_task, packed_app, posted
from fedhet.protocol.messages import Instruction, request

CLIENT, PROJECT = "fedhet/client_app.py", "pyproject.toml"
PLAIN = {"dataset": "synthetic:240x4", "clients": 3}
MARK = b"MARK\n"  # in a file: code that leaves one


@pytest.fixture(scope="module")
def sent():
    with zipfile.ZipFile(io.BytesIO(packed_app())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files, *more, link=""):
    """A zip of these files and more entries, one of them a link."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in (*files.items(), *more):
            info = zipfile.ZipInfo(name)
            if name == link:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, content)
    return stream.getvalue()


@pytest.fixture(scope="module")
def site(tmp_path_factory, sent):
    """A node with its real process, and ``ask``: what it answers to one message.

    The folder where it was started has modules of somebody else's, and one package is installed.
    """
    home = tmp_path_factory.mktemp("site")
    marks, here, packages = home / "marks", home / "here", home / "packages"
    for folder in (marks, here, packages):
        folder.mkdir()
    mark = f"import pathlib; pathlib.Path({str(marks)!r}, __name__).touch()\n"
    for name in ("evil", "torch", "fedhet", "sitecustomize"):
        (here / f"{name}.py").write_text(mark)
    (packages / "lab.py").write_text(mark)
    said = []
    running = Node(NodePlan(home, home, "h:1", {}, home / "log"), said.append)

    def ask(files=sent, more=(), link="", config=PLAIN, limits=None):
        files = {name: text.replace(MARK, mark.encode()) for name, text in files.items()}
        kind = "train" if {"models", "small-model"} & set(config) else "query"
        what = Instruction("e", int(kind == "train"), classes=tuple("0123"))
        message = request(kind, 1, what, 600.0)
        posted(message)
        node = {"partition-id": 0, "num-partitions": 3, "state-dir": "states"} | (limits or {})
        text = json.dumps({"config": config, "run": {}})
        context = Context(1, 1, node, RecordDict(), {"config": text}, 1)
        return running._answer(message, context, packed(files, *more, link=link), (1, 1, 1))[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.syspath_prepend(packages)
        be_task()
        yield SimpleNamespace(ask=ask, marks=marks, said=said, home=home)
        if running._worker is not None:
            running._worker.stop()


ATTACKS = {
    "a changed byte": lambda sent: {CLIENT: b"#" + sent[CLIENT][1:]},
    "a file less": lambda sent: {CLIENT: None},
    "one line more": lambda sent: {CLIENT: MARK + sent[CLIENT]},
    "one more file": lambda sent: {"fedhet/own.py": MARK},
    "torch": lambda sent: {"torch.py": MARK, "torch/__init__.py": MARK},
    "sitecustomize": lambda sent: {"sitecustomize.py": MARK, "usercustomize.py": MARK},
    "a pth": lambda sent: {"fedhet.pth": MARK, "site-packages/x.pth": MARK},
    "another entry point": lambda sent: {
        "evil.py": MARK, PROJECT: sent[PROJECT].replace(b"fedhet.client_app:app", b"evil:app"),
    },
    "a file elsewhere": lambda sent: {
        "../evil.py": MARK, "fedhet/../../torch.py": MARK, "/tmp/evil.py": MARK,
    },
    "modules of ours": lambda sent: {
        "evil.py": MARK, "clients/base.py": MARK, "FEDHET/client_app.py": MARK,
        "fedhet/__pycache__/client_app.cpython-311.pyc": MARK, "fedhet/a.so": MARK,
    },
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_server_sends_is_refused_and_leaves_no_mark(site, sent, attack):
    """Each comes between two honest messages of one run, as from a server that changes its mind."""
    assert "client" in told(site.ask())
    files = (sent | ATTACKS[attack](sent)).items()
    reply = site.ask({name: text for name, text in files if text is not None})
    assert reply.error.code == OTHER_CODE
    assert reply.error.reason.endswith("install the same version")
    assert f"refused: {reply.error.reason}" in site.said  # beside lines of the worker
    again = dict(reversed(sent.items()))  # in any order
    assert "client" in told(site.ask(again)) and not list(site.marks.iterdir())


@pytest.mark.parametrize("content", [b"", b"no zip", packed({"a": b""}), packed(
    {PROJECT: b"x" * (1 << 20)})])  # fmt: skip
def test_what_is_no_application_is_refused_in_one_line(content):
    assert "cannot be read" in difference(content, application())


def test_another_version_and_a_file_that_comes_twice_are_named(sent):
    own, version = application(), __version__
    twice = packed(sent, (CLIENT, b"import os"))
    assert f"such as '{CLIENT}'" in difference(twice, own)
    newer = sent[PROJECT].replace(f'"{version}"'.encode(), b'"9.9"')
    found = difference(packed(sent | {PROJECT: newer, CLIENT: b""}), own)
    assert found == f"this run's fedhet 9.9 is not this site's {version}"


def test_a_link_to_a_file_with_code_is_refused(site, sent):
    path = str(site.home / "here" / "evil.py")
    reply = site.ask(sent | {CLIENT: path.encode()}, link=CLIENT)
    assert reply.error.code == OTHER_CODE and not list(site.marks.iterdir())


@pytest.mark.parametrize(
    "names",
    [{"method": "evil:METHOD"}, {"models": ["evil:make"]}, {"dataset": "evil:load"},
     {"method": "fedavg", "small-model": "evil:make"},
     {"dataset": "os:system"}, {"models": ["subprocess:Popen"]}, {"method": "antigravity:METHOD"}],
)  # fmt: skip
def test_a_run_names_modules_of_installed_packages_only(site, names):
    """Those beside the node, those that the server has and Python's own are not imported."""
    assert told(site.ask(config=PLAIN | names))["error"] in {"configuration", "model", "data"}
    assert not list(site.marks.iterdir())


def test_limits_forbid_what_a_run_names_before_it_is_imported(site):
    (site.home / "none.yaml").write_text("modules: []\n")
    (site.home / "lab.yaml").write_text("modules: [lab]\n")
    none, lab = ({"limits": str(site.home / f"{name}.yaml")} for name in ("none", "lab"))
    for names in ({"method": "lab:M"}, {"models": "lab:make"}, {"dataset": "lab.data:load"},
                  {"small-model": "lab:make"}):  # fmt: skip
        refused = told(site.ask(config=PLAIN | names, limits=none))
        assert (refused["error"], refused["about"]) == ("limit", "modules")
    assert "client" in told(site.ask(limits=none)) and not list(site.marks.iterdir())
    asked = PLAIN | {"method": "lab:M"}
    assert told(site.ask(config=asked, limits=lab))["error"] == "configuration"  # it has no M
    assert (site.marks / "lab").exists()


def told(reply):
    return dict(reply.content.config_records["info"].items())
