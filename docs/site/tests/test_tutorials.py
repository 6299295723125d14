"""The tutorials are run from their text: commands, Python, and what they are said to print."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import pytest

from fedhet.cli.app import execute

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: a title names a file, or the terminal of a command that stays."""

    language: str
    title: str
    text: str


def blocks(name: str) -> Iterator[Block]:
    for language, title, text in FENCE.findall((TUTORIALS / name).read_text(encoding="utf-8")):
        yield Block(language, title, text)


def check(shown: str, said: str) -> None:
    """Every line of a block of text was said, in this order; ``...`` stands for anything."""
    ahead = said.splitlines()
    for line in shown.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.rstrip().split("..."))))
        found = next((k for k, one in enumerate(ahead) if pattern.fullmatch(one.rstrip())), None)
        assert found is not None, f"nothing like {line!r} in:\n{said}"
        ahead = ahead[found + 1 :]


def work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Go through a tutorial in the working folder."""
    space: dict[str, object] = {}
    said = ""
    for block in blocks(name):
        if block.language == "text":
            check(block.text, said)
            said = ""
        elif block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, name, "exec"), space)
        else:
            assert block.language == "bash"
            for line in block.text.splitlines():
                program, *typed = shlex.split(line)
                words = [one for word in typed for one in glob(word) or [word]]  # as a shell does
                assert program == "fedhet"
                assert execute(words) == 0, f"{line}: {capsys.readouterr().err}"
        said += capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["1-patients.md", "2-first-run.md", "3-own-method.md", "5-sweep-and-report.md"]
)
def test_a_tutorial_does_what_it_says(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    work(name, capsys)


def test_there_is_no_other_tutorial():
    """tests/network/test_tutorial.py goes through the fourth."""
    assert sorted(path.name[0] for path in TUTORIALS.glob("*.md")) == list("12345")


@pytest.mark.parametrize(
    ("shown", "said"), [("a b", "a c"), ("b\na", "a\nb"), ("a...c", "ab"), ("a\na", "a")]
)
def test_what_was_not_said_is_missed(shown, said):
    check("a...\nb", "abc\nx\nb")
    with pytest.raises(AssertionError):
        check(shown, said)
