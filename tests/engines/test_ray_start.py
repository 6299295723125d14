"""Programs of a simulation that die: a Ray that starts is started once more, else it is the end."""

import json
from types import SimpleNamespace

import pytest

from fedhet.config.load import build_config
from fedhet.engines import launch, superlink
from fedhet.engines.ray_session import ACTOR
from fedhet.engines.superlink import SuperLink
from fedhet.records.run_folder import RunFolder

DEAD = """Simulation raised an exception
Traceback (most recent call last):
  File "/x/site-packages/ray/_private/node.py", line 1, in start_gcs_server
    wait()
  File "/x/site-packages/ray/_private/services.py", line 2, in wait
    raise RuntimeError
RuntimeError: Timed out waiting for file /tmp/x/gcs_server_port
"""
OURS = """Simulation raised an exception
Traceback (most recent call last):
  File "/x/fedhet/server_app.py", line 1, in main
    raise ValueError
ValueError: no such thing
"""


REASONS = {"completed": "", "failed": "fewer than min-replies"}


class Program:
    """What a process of the herd looks like."""

    def __init__(self, *words: str) -> None:
        self.words, self.killed = list(words), False

    def cmdline(self) -> list[str]:
        return self.words

    def kill(self) -> None:
        self.killed = True


class Link(SuperLink):
    """A SuperLink that starts nothing: ``ends`` is what each start of the run writes, in turn."""

    def __init__(self, folder: RunFolder, ends: list[str]) -> None:
        super().__init__(build_config({}), folder.path, [])
        session = folder.path / "session"
        logs = session / "ray" / "session_2026" / "logs"
        logs.mkdir(parents=True)
        (logs / "gcs_server.err").write_text("\n".join(map(str, range(10))))
        self.env["RAY_TMPDIR"] = str(session)
        self.ends, self.starts, self.seen = ends, 0, "flwr-simulation"
        self.programs: list[Program] = []
        self.herd = SimpleNamespace(refresh=lambda: None, living=lambda: self.programs)
        self._process = SimpleNamespace(poll=lambda: None)
        self.run_folder = folder

    def submit(self, envelope: str) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._vital.clear()
        self._refreshed = 0.0
        self.starts += 1
        end = self.ends.pop(0)
        if end in {"completed", "failed"}:
            ending = {"status": end, "reason": REASONS[end], "rounds": 1}
            self.run_folder.summary.write_text(json.dumps(ending))
        with self.log.open("a") as log:
            log.write(end)
        self._vital |= {self.seen}  # it is gone


@pytest.fixture
def follow(tmp_path, monkeypatch):
    monkeypatch.setattr(superlink, "run_status", lambda *_: ("finished:failed", "it raised"))
    monkeypatch.setattr(superlink, "alive", lambda process: True)
    monkeypatch.setattr(launch, "POLL", 0.0)
    folder = RunFolder.create(build_config({"out": str(tmp_path), "name": "run"}), "x")

    def follow(ends: list[str], *programs: Program, seen="") -> tuple[Link, tuple[str, str]]:
        link = Link(folder, ends)
        link.seen = seen or link.seen
        link.submit("")
        link.programs = list(programs)
        ending = launch._follow(launch.Launch(build_config({}), folder), link, lambda rounds: None)
        return link, ending

    return follow


def test_a_ray_that_dies_at_its_start_is_started_once_more(follow) -> None:
    link, ending = follow([DEAD, "completed"])
    assert ending == ("completed", "") and link.starts == 2
    said = link.log.read_text()
    why = "RuntimeError: Timed out waiting for file /tmp/x/gcs_server_port"
    assert f"fedhet: Ray did not start ({why}); it is tried again\n" in said
    assert "Ray's gcs_server.err: 9\n" in said and "Ray's gcs_server.err: 4\n" not in said


def test_once_and_no_more(follow) -> None:
    link, (status, reason) = follow([DEAD, DEAD, "completed"])
    assert link.starts == 2 and status == "failed" and reason.startswith("RuntimeError: Timed out")


def test_what_is_left_of_it_ends_first(follow) -> None:
    raylet, other = Program("/x/raylet"), Program("sleep")
    link, _ = follow([DEAD, "completed"], raylet, other)
    assert raylet.killed and not other.killed


def test_a_ray_that_had_trained_is_not_started_again(follow) -> None:
    link, ending = follow([DEAD, "completed"], Program(f"{ACTOR}.run"))
    assert ending[0] == "failed" and link.starts == 1


def test_what_the_server_app_says_of_its_end_is_the_runs(follow) -> None:
    link, ending = follow(["failed", "completed"])
    assert ending == ("failed", "fewer than min-replies") and link.starts == 1


def test_an_error_that_is_not_rays_is_the_end(follow) -> None:
    link, ending = follow([OURS, "completed"])
    assert ending == ("failed", "ValueError: no such thing") and link.starts == 1


@pytest.mark.parametrize(("program", "name"), superlink.VITAL.items())
def test_each_program_without_which_nothing_goes_on_is_missed(follow, monkeypatch, program, name):
    """tests/network/test_kills.py kills some of them."""
    monkeypatch.setattr(superlink, "run_status", lambda *_: ("running", "N/A"))
    _, ending = follow(["", "completed"], Program(f"{ACTOR}.run"), seen=program)
    assert ending == ("failed", f"{name} ended unexpectedly (killed?)")
