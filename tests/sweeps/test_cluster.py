"""Cells on the machines of a cluster: who gets which, what travels, what is believed."""

import json
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import yaml
from written_runs import round_line

from fedhet.cli.app import execute
from fedhet.errors import RunFailedError, UserError
from fedhet.records import register
from fedhet.records.run_folder import RunFolder
from fedhet.sweeps import cluster, ray_actor, remote
from fedhet.sweeps.cluster import Cluster, Machine, fitting, gpu_share
from fedhet.sweeps.grid import read_cells
from fedhet.sweeps.ray_actor import Host
from fedhet.sweeps.remote import LostError, opened
from fedhet.sweeps.sweep import Sweep

OURS = {"fedhet": "1", "torch": "2", "source": "aa", "sweeps": "bb"}


class Keeper:
    """A :class:`Host` of this process, for as long as its machine is there."""

    def __init__(self, machines: "Machines", machine: Machine, stop: threading.Event) -> None:
        self.machines, self.machine, self.stop = machines, machine, stop
        self.host = Host()
        self.told: list[str] = []

    def call(self, method: str, *words: object, limit: int = 1 << 30) -> bytes:
        if self.stop.is_set() or self.machine.id not in self.machines.there:
            raise LostError(f"machine {self.machine.name} is gone")
        self.told.append(method)
        if method == "facts":
            return json.dumps(self.machines.facts[self.machine.id]).encode()
        answer = getattr(self.host, method)(*words)
        return opened(self.machines.lie(method, answer), self.machine.name, limit)

    def kill(self) -> None:
        if self.host.process is not None:
            self.host.process.kill()
            self.host.process.wait()


class Machines:
    """Machines that are there until they are taken away; ``lie`` changes what they answer."""

    def __init__(self, cache: Path, *cpus: float) -> None:
        self.there = {str(k): Machine(str(k), f"m{k}", n) for k, n in enumerate(cpus)}
        self.facts = {k: OURS | {"cache": str(cache / k)} for k in self.there}
        self.keepers: list[Keeper] = []
        self.lie = lambda method, answer: answer

    def alive(self):
        return dict(self.there)

    def keeper(self, machine, cpus, gpus, stop):
        self.keepers.append(Keeper(self, machine, stop))
        return self.keepers[-1]

    def lose(self, name: str) -> None:
        """As when it is switched off."""
        del self.there[name]
        for keeper in self.keepers:
            if keeper.machine.id == name:
                keeper.kill()

    def ran(self, method: str) -> list[str]:
        """The machines whose keepers were told that, in order."""
        return [one.machine.name for one in self.keepers for told in one.told if told == method]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    program = str(Path(__file__).with_name("cell_program.py"))
    monkeypatch.setattr(ray_actor, "PROGRAM", [sys.executable, program])
    monkeypatch.setattr(ray_actor, "facts", lambda: OURS)
    monkeypatch.setattr(remote, "LOOK", 0.05)
    monkeypatch.setattr(cluster, "REST", 0.3)
    monkeypatch.setattr(remote, "FIRST", 0.1)
    monkeypatch.setattr(remote, "SHARE", 0.0)
    monkeypatch.setenv("TEST_LINE", round_line(0, 1.0).strip())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "register"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def make_cells(tmp_path, **changes):
    path = tmp_path / "preset.yaml"
    preset = {"dataset": "digits", "rounds": 8, "grid": {"seed": [0, 1]}} | changes
    path.write_text(yaml.safe_dump(preset))
    found = read_cells(path, [])
    for cell in found:
        config = cell.config.model_copy(update={"out": str(tmp_path / "out"), "name": cell.name})
        yield fitting(type(cell)(cell.values, config))


def make_sweep(tmp_path, machines, **changes) -> Sweep:
    found = Sweep.open("s", tmp_path / "out", list(make_cells(tmp_path, **changes)), execute)
    found.executor = Cluster(machines)
    return found


def rounds_home(found: Sweep) -> int:
    return min(job.rounds for job in found.jobs)


def left(tmp_path) -> list[str]:
    return [path.name for path in (tmp_path / "tmp").iterdir()]


def test_cells_come_home_whole_with_our_paths(tmp_path) -> None:
    machines, seen = Machines(tmp_path, 1, 1, 0), set()
    found = make_sweep(tmp_path, machines)
    found.run(100, lambda now: seen.add(max(job.rounds for job in now.jobs)))
    assert [job.state for job in found.jobs] == ["finished", "finished"]
    assert machines.ran("start") == ["m0", "m1"]  # one each, none where no CPU is
    assert seen & set(range(1, 8))  # while they ran
    for job in found.jobs:
        config = yaml.safe_load((job.folder / "config.yaml").read_text())
        identity = json.loads((job.folder / "checkpoint" / "run.json").read_text())
        assert config == identity["config"] == job.cell.config.flat()
        given = json.loads((job.folder / "given.json").read_text())
        assert given["out"].startswith(str(tmp_path / "tmp"))
        assert sorted(p.name for p in (job.folder / "state" / "0").iterdir()) == ["7", "8"]
        assert "round 8" in (found.folder / f"{job.cell.name}.log").read_text()
        RunFolder(job.folder).lock().release()
    assert left(tmp_path) == [] and not list(found.folder.glob("*.arriving"))


def test_a_lost_machine_gives_its_cell_to_another_which_goes_on(tmp_path) -> None:
    machines = Machines(tmp_path, 1, 1)
    found = make_sweep(tmp_path, machines)

    def lose(now: Sweep) -> None:
        if "1" in machines.there and rounds_home(now) >= 2:
            machines.lose("1")

    found.run(100, lose)
    assert [job.state for job in found.jobs] == ["finished", "finished"]
    assert machines.ran("start") == ["m0", "m1", "m0"]
    (line,) = found.notes
    assert line.endswith("machine m1 is gone; it goes on elsewhere")
    (lost,) = [job for job in found.jobs if job.losses]
    lines = (lost.folder / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [*range(1, 9)]
    assert (found.folder / f"{lost.cell.name}.log").read_text().count("round 1\n") == 1  # not anew


def test_a_cell_that_loses_every_machine_has_failed(tmp_path, monkeypatch) -> None:
    machines = Machines(tmp_path, 1)
    found = make_sweep(tmp_path, machines, grid={"seed": [0]})

    def lie(method: str, answer: bytes) -> bytes:
        if method == "code":
            raise LostError("machine m0: the actor died")
        return answer

    machines.lie = lie
    found.run(100, lambda now: None)
    (job,) = found.jobs
    assert job.state == "failed" and len(machines.ran("start")) == 3
    assert job.reason == "machine m0: the actor died, the 3. machine that it lost"


def test_a_machine_that_lost_a_cell_rests_while_the_cluster_finds_out(
    tmp_path, monkeypatch
) -> None:
    """The only machine: nobody else can take the cell meanwhile."""
    monkeypatch.setattr(cluster, "REST", 1.5)
    machines, times = Machines(tmp_path, 1), []
    found = make_sweep(tmp_path, machines, grid={"seed": [0]})

    def lie(method: str, answer: bytes) -> bytes:
        if method == "start":
            times.append(time.monotonic())
            if len(times) == 1:
                raise LostError("machine m0: the actor died")
        return answer

    machines.lie = lie
    found.run(100, lambda now: None)
    assert found.counts()["finished"] == 1
    first, second = times
    assert second - first >= 1.5


def test_a_machine_with_other_code_is_left_out_and_named(tmp_path) -> None:
    machines = Machines(tmp_path, 1, 1)
    machines.facts["1"]["source"] = "cc"
    place = Cluster(machines)
    (line,) = place.notes()
    assert line == (
        "machine m1 is left out: it has a fedhet whose source cc, here is aa: install the same "
        "there"
    )
    machines.facts["0"]["torch"] = "1.0"
    with pytest.raises(UserError, match="no machine of the cluster can run a cell: machine m"):
        Cluster(machines)
    machines.facts["0"] = ["no such thing"]
    with pytest.raises(UserError, match="m0 is left out: its answer is damaged"):
        Cluster(machines)


def test_what_is_too_large_for_all_or_means_one_machine_is_refused(tmp_path) -> None:
    found = make_sweep(tmp_path, Machines(tmp_path, 1, 2), threads=3)
    with pytest.raises(UserError, match=r"threads: 3 is more than any machine .* \(2 CPUs\)"):
        found.run(100, lambda now: None)
    for change, says in (
        ({"device": "cuda:1"}, "device: 'cuda:1'"),
        ({"state-dir": "s"}, "state-dir"),
    ):
        with pytest.raises(UserError, match=says):
            list(make_cells(tmp_path, **change))
    (turned, _) = make_cells(tmp_path, engine="ray")
    assert turned.config.engine == "inline"


def test_a_gpu_is_shared_by_the_cells_that_fit_beside_it(tmp_path) -> None:
    known = [Machine("a", "a", 8, 2), Machine("b", "b", 4, 0)]
    config = next(make_cells(tmp_path, device="cuda")).config
    assert gpu_share(config, known) == 0.25
    assert gpu_share(config.model_copy(update={"threads": 8}), known) == 1.0
    assert gpu_share(config.model_copy(update={"device": "cpu"}), known) == 0.0
    assert gpu_share(config, known[1:]) == 0.0


def test_data_goes_to_a_machine_once_and_not_where_it_is(tmp_path) -> None:
    data = tmp_path / "images.zip"
    data.write_text("many images")
    machines = Machines(tmp_path / "caches", 2)

    def elsewhere(method: str, answer: bytes) -> bytes:
        return b"+" if method == "extent" else answer  # another disk than ours

    machines.lie = elsewhere
    found = make_sweep(tmp_path, machines, **{"data-path": str(data)})
    found.run(100, lambda now: None)
    assert machines.ran("keep") == ["m0"] and len(machines.ran("start")) == 2
    for job in found.jobs:
        given = json.loads((job.folder / "given.json").read_text())
        assert given["data"] == "many images"
        assert given["data-path"].startswith(str(tmp_path / "caches" / "0" / "sent"))
        assert yaml.safe_load((job.folder / "config.yaml").read_text())["data-path"] == str(data)
    machines = Machines(tmp_path / "caches", 1)
    found = make_sweep(tmp_path / "out", machines, **{"data-path": str(data)})
    found.run(100, lambda now: None)
    assert machines.ran("keep") == []  # it lies there under its own path


def test_states_that_a_run_deletes_at_its_end_go_here_too(tmp_path) -> None:
    found, seen = make_sweep(tmp_path, Machines(tmp_path, 2), **{"keep-state": False}), set()
    found.run(100, lambda now: seen.update(p.name for p in (now.out).glob("*/state/0/*")))
    assert seen
    assert not list(found.out.glob("*/state/0/*"))


@pytest.mark.parametrize(
    "lie",
    [
        {"../../escaped": [1, "0" * 64, 0]},
        {"/tmp/escaped": [1, "0" * 64, 0]},
        {"a/./b": [1, "0" * 64, 0]},
        {"a": [1, "0" * 64, 0], "a/b": [1, "0" * 64, 0]},
        {"a": [-1, "0" * 64, 0]},
        {"a": ["1", "0" * 64, 0]},
        {"a": [1, "x", 0]},
        {"config.yaml": [1, "0" * 64, 0]},
        ["a"],
    ],
)
def test_a_machine_that_lies_about_files_fails_its_cell_and_writes_nothing(tmp_path, lie) -> None:
    machines = Machines(tmp_path, 1)
    found = make_sweep(tmp_path, machines, grid={"seed": [0]})
    machines.lie = lambda method, answer: (
        b"+" + json.dumps(lie).encode() if method == "tree" else
        b"+x" if method == "read" else answer
    )  # fmt: skip
    found.run(100, lambda now: None)
    (job,) = found.jobs
    assert job.state == "failed" and ("machine" in job.reason or "arrive" in job.reason)
    assert not job.folder.exists()
    assert {p.name for p in tmp_path.iterdir()} <= {"preset.yaml", "out", "tmp"}


@pytest.mark.parametrize("answer", [None, b"", "+text", {"a": 1}, b"+" + b"x" * 9])
def test_an_answer_of_another_kind_is_refused(answer) -> None:
    assert opened(b"+12345678", "m", 8) == b"12345678"
    with pytest.raises(RunFailedError, match="machine m gave an answer of another kind"):
        opened(answer, "m", 8)
    with pytest.raises(RunFailedError, match="machine m: no such file"):
        opened(b"-no such file", "m", 100)


def test_what_interrupts_a_sweep_ends_its_cells_and_brings_them_home(tmp_path) -> None:
    machines = Machines(tmp_path, 1, 1)
    found = make_sweep(tmp_path, machines, rounds=500)

    def stop(now: Sweep) -> None:
        if rounds_home(now) >= 2 and len(now.running()) == 2:  # side by side
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.run(100, stop)
    assert not any(
        psutil.pid_exists(k.host.process.pid) for k in machines.keepers if k.host.process
    )
    for job in found.jobs:
        assert json.loads((job.folder / "summary.json").read_text())["status"] == "stopped"
    again = make_sweep(tmp_path, machines, rounds=500)
    assert [job.state for job in again.jobs] == ["pending", "pending"]
    assert rounds_home(again) >= 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [("TEST_METHOD", "evil:Method", "run of other code"), ("TEST_ID", "other", "id of the run")],
)
def test_a_machine_cannot_have_other_code_or_another_run_taken_for_ours(
    tmp_path, monkeypatch, name, value, says
) -> None:
    register.note("other", tmp_path / "elsewhere", [])
    monkeypatch.setenv(name, value)
    found = make_sweep(tmp_path, Machines(tmp_path, 1), grid={"seed": [0]})
    found.run(100, lambda now: None)
    assert found.jobs[0].state == "failed" and says in found.jobs[0].reason
    assert not found.jobs[0].folder.exists()
    assert register.find("other").folder == str(tmp_path / "elsewhere")


def test_a_cell_that_is_killed_says_so(tmp_path) -> None:
    machines = Machines(tmp_path, 1)
    found = make_sweep(tmp_path, machines, grid={"seed": [0]})

    def kill(now: Sweep) -> None:
        if rounds_home(now) >= 2:
            machines.keepers[-1].host.process.send_signal(signal.SIGKILL)

    found.run(100, kill)
    assert found.jobs[0].reason.startswith("killed by SIGKILL, perhaps for want of memory")


def test_a_folder_that_another_process_is_at_is_waited_for(tmp_path) -> None:
    found = make_sweep(tmp_path, Machines(tmp_path, 2))
    found.jobs[0].folder.mkdir(parents=True)
    lock, began = RunFolder(found.jobs[0].folder).lock(), time.monotonic()
    waits = []

    def look(now: Sweep) -> None:
        waits.append(now.jobs[0].waits)
        if time.monotonic() - began > 1.0:
            lock.release()

    found.run(100, look)
    assert [job.state for job in found.jobs] == ["finished", "finished"] and any(waits)


def test_what_a_killed_keeper_left_is_removed_by_the_next(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ray_actor, "YOUNG", -1.0)
    held = Host()
    (tmp_path / "tmp" / f"{ray_actor.PREFIX}old").mkdir()
    (tmp_path / "tmp" / f"{ray_actor.PREFIX}old" / ".held").touch()
    next_one = Host()
    assert sorted(left(tmp_path)) == sorted([held.folder.name, next_one.folder.name])
