"""Clients that wait for a message which is gone; this process stands for the SuperNode."""

import os
import signal
import subprocess
import sys

import pytest

from fedhet.runtime import strays
from fedhet.runtime.strays import Strays

RECEIVING = "INFO :      Receiving: train message (ID: 7f)\n"
GONE = "INFO :      Run ID 5 is not in `RUNNING` status. Ignoring message 7f.\n"
SENT = "INFO :      Sent successfully\n"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a program of Flower's name that waits; those that are left are killed."""
    monkeypatch.setattr(strays, "GRACE", 0.0)
    started = []

    def one(before=""):
        path = tmp_path / str(len(started)) / strays.CLIENT
        path.parent.mkdir()
        path.write_text(f"{before}import time; print(flush=True); time.sleep(600)")
        made = subprocess.Popen([sys.executable, "-S", str(path)], stdout=subprocess.PIPE)
        started.append(made)
        made.stdout.readline()
        return made

    yield one
    for made in started:
        made.kill()
        made.wait()
        made.stdout.close()


def test_a_client_at_work_is_left_alone_and_one_whose_message_is_gone_is_ended(start):
    mine, client = Strays(os.getpid()), start()
    mine.hear(RECEIVING)
    assert mine.end() == 0 and client.poll() is None
    mine.hear(GONE)
    assert mine.end() == 1
    assert client.wait(30) == -signal.SIGTERM
    assert mine.end() == 0


def test_of_two_only_the_newer_can_be_at_work(start):
    mine, older, newer = Strays(os.getpid()), start(), start()
    mine.hear(GONE)
    mine.hear(RECEIVING)
    assert mine.end() == 1
    assert older.wait(30) == -signal.SIGTERM and newer.poll() is None


def test_one_that_does_not_listen_is_killed_at_the_next_look(start):
    mine, client = Strays(os.getpid()), start(STUBBORN)
    mine.hear(GONE)
    assert (mine.end(), client.poll()) == (1, None)
    assert mine.end() == 0
    assert client.wait(30) == -signal.SIGKILL


def test_one_that_has_just_answered_has_time_to_go(start, monkeypatch):
    monkeypatch.setattr(strays, "GRACE", 600.0)
    mine, client = Strays(os.getpid()), start()
    mine.hear(SENT)
    assert mine.end() == 0 and client.poll() is None
