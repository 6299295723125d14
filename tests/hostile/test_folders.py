"""Crafted run folders, models and packed records under every command (benchmarks.hostile)."""

import json
import os
import shutil
from pathlib import Path

import pytest

from benchmarks.hostile_craft import marks_fitted, put, sparse
from benchmarks.hostile_folders import Base, Sandbox

FEW = range(8)
SHARE = 50  # folders of one slow test


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    return Base.make(tmp_path_factory.mktemp("base"))


@pytest.fixture
def sandbox(base: Base, tmp_path: Path) -> Sandbox:
    before = os.environ.get("FEDHET_CACHE")
    assert before, "a cache of its own: what is decoded is no effect"
    return Sandbox(tmp_path / "sandbox", base)


def attack(sandbox: Sandbox, seeds) -> None:
    for seed in seeds:
        sandbox.attack(seed)
    found = sandbox.found
    assert not found.escapes, found.escapes
    assert not found.effects, found.effects
    assert found.tried == len(list(seeds)) and found.commands["refused"] > 0


def test_a_few_crafted_folders(sandbox: Sandbox) -> None:
    attack(sandbox, FEW)


# What once ended a command in a traceback, took gigabytes, or hung it.
CORPUS: dict[str, tuple[str, bytes]] = {
    "bytes in partition.csv": ("partition.csv", b"client,0,1\n\xff\xfe,1,2\n"),
    "a partition without a head": ("partition.csv", b"\n"),
    "infinity in summary.json": ("summary.json", b'{"status":"completed","rounds":Infinity}'),
    "text in summary.json": (
        "summary.json", b'{"status": "completed", "reason": "", "rounds": "two"}',
    ),
    "ten thousand digits": ("config.yaml", b"rounds: " + b"9" * 10_000),
    "nested aliases": (
        "config.yaml",
        b"a: &a [x, x, x, x, x, x, x, x, x]\n"
        + b"".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n".encode()
            for i in range(9)
        ),
    ),
    "nulls in run.json": ("checkpoint/run.json", b'{"experiment": null, "config": null}'),
    "unknown fields in run.json": (
        "checkpoint/run.json", b'{"experiment": "ab", "config": {}, "more": 1}',
    ),
    "a depth in rounds.jsonl": ("rounds.jsonl", b'{"a":' * 100_000 + b"\n"),
    "a number of a client": ("clients.csv", b"round,client\n1,2\n"),
    "no method in summary.json": (
        "summary.json", b'{"status": "completed", "reason": "", "rounds": 2}',
    ),
    "environment.json of a text": ("environment.json", b'"x"'),
}  # fmt: skip


@pytest.mark.parametrize("kind", CORPUS)
def test_those_that_once_escaped(sandbox: Sandbox, kind: str) -> None:
    name, data = CORPUS[kind]
    sandbox.attack(0, lambda run: put(run / name, data))
    assert (sandbox.found.escapes, sandbox.found.effects) == ([], [])


def test_a_state_that_does_not_say_of_which_run(sandbox: Sandbox) -> None:
    def change(run: Path) -> None:
        for note in run.glob("state/*/0/client.json"):
            said = json.loads(note.read_bytes())
            del said["run"]
            put(note, json.dumps(said).encode())

    sandbox.attack(0, change)
    assert (sandbox.found.escapes, sandbox.found.effects) == ([], [])


def test_lines_that_are_no_more_with_marks_that_fit(sandbox: Sandbox) -> None:
    def change(run: Path) -> None:
        put(run / "rounds.jsonl", b'{"a":')
        marks_fitted(run)

    sandbox.attack(0, change)
    assert (sandbox.found.escapes, sandbox.found.effects) == ([], [])


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.csv", "partition.csv", "summary.json"])
def test_folders_where_files_belong(sandbox: Sandbox, name: str) -> None:
    sandbox.attack(0, lambda run: ((run / name).unlink(), (run / name).mkdir()))
    assert (sandbox.found.escapes, sandbox.found.effects) == ([], [])


@pytest.mark.parametrize(
    "name",
    ["rounds.jsonl", "clients.csv", "checkpoint/server.safetensors", "../model/model.safetensors"],
)
def test_files_that_are_long_and_take_no_room(sandbox: Sandbox, name: str) -> None:
    """Two gigabytes of them were read into memory, and more made of them."""
    sandbox.attack(0, lambda run: sparse(run / name, (run / name).read_bytes()))
    assert (sandbox.found.escapes, sandbox.found.effects) == ([], [])


def hold_up(run: Path) -> None:
    for state in run.glob("state/*/0/*.safetensors"):
        state.unlink()
        os.mkfifo(state)


def count_otherwise(run: Path) -> None:
    for client in run.glob("state/*/0"):
        shutil.copytree(client, client.with_name("²"))
        shutil.copy(next(client.glob("*.safetensors")), client / "².safetensors")


def draw_by_latex(run: Path) -> None:
    put(run / "matplotlibrc", b"text.usetex: True\n")
    (run / ".owner").unlink(missing_ok=True)
    (run / ".owner").mkdir()


@pytest.mark.parametrize("change", [hold_up, count_otherwise, draw_by_latex])
def test_what_an_hour_with_the_table_of_threats_found(sandbox: Sandbox, change) -> None:
    """A pipe for a state, digits that are no numbers, settings of matplotlib, a lock's folder."""
    sandbox.attack(0, change)
    assert (sandbox.found.escapes, sandbox.found.effects) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, SHARE))
def test_five_hundred(sandbox: Sandbox, first: int) -> None:
    attack(sandbox, range(10_000 + first, 10_000 + first + SHARE))


def test_the_sandbox_sees_what_it_looks_for(sandbox: Sandbox, monkeypatch) -> None:
    """An escape, a wrong code, a traceback in the text, and a change of what is dear."""

    def lost(words: list[str]) -> int:
        (sandbox.home / ".ssh" / "id").unlink(missing_ok=True)
        if words[0] == "verify":
            raise RuntimeError("x")
        return 1

    monkeypatch.setattr("benchmarks.hostile_folders.execute", lost)
    sandbox.attack(0)
    assert any("RuntimeError" in one for one in sandbox.found.escapes)
    assert any("code 1" in one for one in sandbox.found.escapes)
    assert any(".ssh" in one for one in sandbox.found.effects)
