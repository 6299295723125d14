"""One run at a time in a process, which is left as it was; models that raise SystemExit."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import fedhet
from fedhet.engines.launch import one_run

KEYS = {
    "dataset": "synthetic:120x4", "image_size": 16, "models": ["cnn-5"], "clients": 2, "rounds": 2,
    "representation": 32, "local_epochs": 1, "batch_size": 16,
}  # fmt: skip


def sha(run: fedhet.Run) -> str:
    return run.summary["run_sha256"]


def small(tmp_path: Path, **keys) -> fedhet.Run:
    return fedhet.run("quickstart", out=tmp_path, **{"engine": "inline"} | KEYS | keys)


def test_two_threads_take_turns_and_each_run_has_the_figures_that_it_has_alone(tmp_path, capsys):
    seeds = (1, 2, 3)
    wanted = [sha(small(tmp_path, seed=seed, progress=False)) for seed in seeds]
    runs: dict[int, fedhet.Run] = {}
    streams = sys.stdin, sys.stdout, sys.stderr
    threads = [
        threading.Thread(target=lambda seed=seed: runs.update({seed: small(tmp_path, seed=seed)}))
        for seed in seeds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sha(runs[seed]) for seed in seeds] == wanted
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    assert "waiting for another run in this process" in capsys.readouterr().err


def test_a_run_out_of_a_run_is_refused_by_name():
    with one_run(), pytest.raises(fedhet.UserError, match="out of another one"):
        fedhet.run("quickstart")


def state_of_process() -> list[object]:
    log = logging.getLogger("fedhet")
    return [
        torch.get_rng_state().sum().item(), torch.get_num_threads(),
        torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic,
        torch.utils.deterministic.fill_uninitialized_memory, log.handlers[:], log.level,
        log.propagate, dict(os.environ), Path.cwd(), sys.stdout, sys.stderr,
    ]  # fmt: skip


def test_it_leaves_the_process_as_it_was(tmp_path):
    torch.set_num_threads(2)
    try:
        before = state_of_process()
        small(tmp_path, threads=1, progress=False)
        assert state_of_process() == before
    finally:
        torch.set_num_threads(1)


PROGRAM = """
import os, sys, fedhet
def run(name):
    return fedhet.run("quickstart", out=sys.argv[1], name=name, {keys})
if __name__ == "__main__":
    {body}
"""


def sh(command: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def program(tmp_path: Path, body: str, shell: str = "", **keys) -> subprocess.CompletedProcess[str]:
    words = ", ".join(f"{key}={value!r}" for key, value in (KEYS | keys).items())
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.format(keys=words, body=body))
    return sh(f'exec "{sys.executable}" "{script}" "{tmp_path}" {shell}')


def test_a_child_that_is_forked_after_a_run_with_two_threads_can_train(tmp_path):
    body = (
        "run('one')\n    if os.fork() == 0:\n        run('two'); os._exit(7)\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    done = program(tmp_path, body, engine="inline", threads=2, rounds=1)
    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize("how", ["inline", "processes", "command"])
@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(tmp_path, how, closed):
    words = f"models=cnn-5 dataset=synthetic:120x4 clients=2 rounds=1 name=one out={tmp_path}"
    if how == "command":
        done = sh(f'"{sys.executable}" -m fedhet run quickstart {words} {closed}')
    else:
        done = program(tmp_path, "run('one')", closed, engine=how, rounds=1, actors=1)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert fedhet.load_run(tmp_path / "one").summary["status"] == "completed"


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_model_that_raises_system_exit_is_named(tmp_path, monkeypatch, bad_net, engine):
    bad_net("raise SystemExit(3)")
    monkeypatch.setenv("COMMAND", "0")
    with pytest.raises(fedhet.UserError, match=r"'bad_net:at_once'.* fails: SystemExit: 3"):
        small(tmp_path, engine=engine, models=["bad_net:at_once"], progress=False)
    with pytest.raises(fedhet.RunFailed, match=r"client 0: SystemExit: 3 \(bad_net.py:11\)"):
        small(tmp_path, engine=engine, models=["bad_net:make"], progress=False)
