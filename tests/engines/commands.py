"""``fedhet`` commands in processes of their own, and the processes that they start."""

import json
import os
import sys
from pathlib import Path

import psutil
from helpers.pace import PATIENCE
from helpers.programs import Process, wait_for

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


class Command(Process):
    """A ``fedhet`` command with its run folder, which runs in the folder of its log."""

    def __init__(self, folder: Path, *words: str, env=os.environ, log: Path | None = None) -> None:
        self.folder = folder
        words = (sys.executable, "-P", "-m", "fedhet", *words)
        super().__init__(words, log or folder.with_suffix(".out"), env)
        self.start()

    def rounds(self) -> list[dict]:
        return RunFolder(self.folder).read_rounds()

    def wait_rounds(self, count: int) -> None:
        """Until that many rounds are finished; the command must still run then."""
        wait_for(
            lambda: len(self.rounds()) >= count or not self.running(),
            f"{count} rounds", pause=0.02,
        )  # fmt: skip
        assert self.running(), self.log.read_text()
        self.children()

    def ended(self) -> tuple[int, str]:
        """Exit code and what it printed; its children have gone as well."""
        try:
            code = self.popen.wait(PATIENCE)
            _, alive = psutil.wait_procs(self.tree.values(), timeout=10)
            assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
        finally:
            self.kill()
        return code, self.log.read_text()


def run(base: Path, name: str, *words: str, env=os.environ) -> Command:
    """Start the quickstart, made small."""
    where = (f"out={base}", f"name={name}")
    return Command(base / name, "run", "quickstart", *WORK, *words, *where, env=env)


def launched(config, name: str, on_rounds=lambda _: None) -> RunFolder:
    """A run in this process."""
    folder = RunFolder.create(config, name)
    grid.run(Launch(config, folder), on_rounds)
    return folder


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())
