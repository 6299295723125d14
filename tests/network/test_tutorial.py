"""The tutorial of a federation, from its text: every terminal is a process."""

import shlex

import pytest
from helpers.programs import wait_for
from network.federation import Commands

from docs.site.tests.test_tutorials import blocks, check
from fedhet.engines.system import free_ports

pytestmark = pytest.mark.network
PORT = "8443"  # of the text; here it may be taken


@pytest.fixture
def commands(tmp_path):
    made = Commands(tmp_path)
    yield made
    made.stop()


def test_the_federation_of_three_does_what_it_says(commands, tmp_path):
    port = str(free_ports(1)[0])
    said, stays = "", []
    for block in blocks("4-federation.md"):
        text = block.text.replace(PORT, port)
        if block.language == "text" and stays:
            for process in stays:  # said sooner or later
                for part in filter(None, text.strip().split("...")):
                    wait_for(lambda: process.said(part), f"{process.words} says {part!r}")  # noqa: B023
            stays = []
        elif block.language == "text":
            check(text, said)
            said = ""
        else:
            for line in text.splitlines():
                program, *words = shlex.split(line)
                assert program == "fedhet"
                if block.title:
                    stays.append(commands.start(block.title, *words))
                    continue
                done = commands.do(*words)
                assert done.returncode == 0, f"{line}: {done.stderr}"
                said += done.stdout
