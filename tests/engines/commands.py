"""``fedhet`` commands in processes of their own, and the processes that they start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
from helpers.pace import PATIENCE
from helpers.programs import wait_for

from fedhet.engines import grid
from fedhet.engines.launch import Launch
from fedhet.records.run_folder import RunFolder

PROXIES = dict.fromkeys(("http_proxy", "HTTPS_PROXY", "all_proxy"), "http://127.0.0.1:9")  # nobody
NOTEBOOK = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TTY_COMPATIBLE": "1"}
BARE = {
    "PATH": "", "SHELL": "/bin/none", "HOME": "/proc/none", "LC_ALL": "C", "PYTHONUTF8": "0",
    "NO_COLOR": "1", "TERM": "dumb", "no_proxy": "localhost,.hospital.org",
}  # fmt: skip
WORK = (
    "dataset=synthetic:80x4", "image-size=16", "representation=64", "models=cnn-5", "clients=2",
    "local-epochs=1", "batch-size=16",
)  # fmt: skip


class Command:
    """A ``fedhet`` command; ``children`` are all its descendants when last looked at."""

    def __init__(self, folder: Path, *words: str, **how) -> None:
        self.folder = folder
        self.children: dict[int, psutil.Process] = {}
        how = {"env": dict(os.environ), "text": True, **how}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedhet", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **how,
        )  # fmt: skip

    def rounds(self) -> list[dict]:
        try:
            lines = (self.folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_rounds(self, count: int) -> None:
        """Until that many rounds are finished; the command must still run then."""
        wait_for(
            lambda: len(self.rounds()) >= count or self.process.poll() is not None,
            f"{count} rounds", pause=0.02,
        )  # fmt: skip
        assert self.process.poll() is None, self.process.communicate()
        self.look()

    def look(self) -> list[psutil.Process]:
        found = psutil.Process(self.process.pid).children(recursive=True)
        self.children |= {one.pid: one for one in found}
        return found

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; its children have gone as well."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
            _, alive = psutil.wait_procs(self.children.values(), timeout=10)
            assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
        finally:
            self.process.kill()
            for one in self.children.values():
                if one.is_running():
                    one.kill()
        return self.process.returncode, out, err


def run(base: Path, name: str, *words: str, **how) -> Command:
    """Start the quickstart, made small."""
    where = (f"out={base}", f"name={name}")
    return Command(base / name, "run", "quickstart", *WORK, *words, *where, **how)


def launched(config, name: str, on_rounds=lambda _: None) -> RunFolder:
    """A run in this process."""
    folder = RunFolder.create(config, name)
    grid.run(Launch(config, folder), on_rounds)
    return folder


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())
