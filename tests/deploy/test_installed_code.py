"""What a node makes of the application that a server sends: only the installed one passes."""

import io
import stat
import zipfile

import pytest
from flwr.app import Context, Message, RecordDict

from fedhet.deploy import bundle, node
from fedhet.deploy.node import Node, NodePlan
from fedhet.protocol.flower import be_one_process, packed_app, posted

CLIENT = "fedhet/client_app.py"


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """The application as `fedhet run` sends it: content by name."""
    packed = packed_app(bundle.write(tmp_path_factory.mktemp("app") / "app"))
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def own():
    return bundle.installed()


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


def test_the_installed_application_passes_in_any_order(sent, own):
    assert bundle.difference(packed(sent), own) == ""
    assert bundle.difference(packed(dict(reversed(sent.items()))), own) == ""


@pytest.mark.parametrize(
    "more",
    ["fedhet/own.py", "torch.py", "sitecustomize.py", "fedhet/x.pth", "x.pth", "fedhet/a.so",
     "../fedhet/client_app.py", "fedhet/../torch.py", "/tmp/torch.py", "fedhet/__pycache__/x.pyc",
     "clients/base.py", "FEDHET/client_app.py"],
)  # fmt: skip
def test_one_more_file_is_refused(sent, own, more):
    found = bundle.difference(packed(sent | {more: b"raise SystemExit"}), own)
    assert f"differs in '{more}'" in found and "\n" not in found


def test_other_contents_are_refused(sent, own):
    code = sent[CLIENT]
    for other in (code[:-1] + b" ", code + b"\n", b"", code * 50):
        assert f"differs in '{CLIENT}'" in bundle.difference(packed(sent | {CLIENT: other}), own)
    less = {name: content for name, content in sent.items() if name != CLIENT}
    assert f"differs in '{CLIENT}'" in bundle.difference(packed(less), own)
    twice = packed(sent, (CLIENT, b"import os"))
    assert f"differs in '{CLIENT}'" in bundle.difference(twice, own)
    assert "differs in" in bundle.difference(packed(sent | {CLIENT: b"/etc"}, link=CLIENT), own)


def test_another_component_or_version_is_named(sent, own):
    project = sent["pyproject.toml"].decode()
    other = project.replace("fedhet.client_app:app", "fedhet.testing:app").encode()
    found = bundle.difference(packed(sent | {"pyproject.toml": other}), own)
    assert "is not fedhet: it runs 'fedhet.testing:app'" in found
    newer = project.replace(f'"{bundle.__version__}"', '"9.9"').encode()
    found = bundle.difference(packed(sent | {"pyproject.toml": newer, CLIENT: b""}), own)
    assert found == f"this run's fedhet 9.9 is not this site's {bundle.__version__}"


@pytest.mark.parametrize("content", [b"", b"no zip", packed({"a": b""}), packed(
    {"pyproject.toml": b"x" * (1 << 20)})])  # fmt: skip
def test_what_is_no_application_is_refused(own, content):
    assert "cannot be read" in bundle.difference(content, own)


class Task:
    """A message of a run, with the application that came with it."""

    def __init__(self, message, sent):
        self.message, self.sent, self.reply = message, sent, None

    def pull(self):
        context = Context(1, 1, {}, RecordDict(), {}, 1)
        return self.message, context, self.sent, (1, 1, 1)

    def push(self, reply, context):
        self.reply = reply


class Worker:
    """Counts what it is to answer."""

    run, last, asked = 0, 0.0, 0

    def __init__(self, own):
        self.code = own

    def alive(self):
        return True

    def answer(self, message, context, ids):
        self.asked += 1
        return Message(RecordDict(), reply_to=message), context


def test_an_application_that_changes_between_two_messages_is_refused(tmp_path, sent, own):
    """Every message is compared; a refused one reaches no code, and both sides are told."""
    be_one_process()
    said = []
    keeper = Node(NodePlan(tmp_path, tmp_path, "h:1", {}, tmp_path / "log"), said.append)
    worker = keeper._worker = Worker(own)
    for files, asked in ((sent, 1), (sent | {"torch.py": b""}, 1), (sent, 2)):
        message = Message(RecordDict(), 1, "train")
        posted(message)
        task = Task(message, packed(files))
        keeper._answer(task)
        assert worker.asked == asked
        if "torch.py" in files:
            assert task.reply.error.code == node.OTHER_CODE
            assert f"refused: {task.reply.error.reason}" in said
            assert "install the same version, or --code sent" in said[-1]
