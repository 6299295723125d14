"""The words of `fedhet sweep`: printed commands, shards, and what is refused."""

from pathlib import Path

import pytest
import yaml

from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.sweeps.sweep import shard


def test_printed_commands_say_all_that_was_said(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("preset.yaml").write_text(yaml.safe_dump({"dataset": "digits", "grid": {"seed": [0]}}))
    words = ["preset.yaml", "state-dir=s", "lr=0.1", "--out=o", "--accept-mixed", "--workers=3"]
    assert execute(["sweep", *words, "--profile=quick", "--print"]) == 0
    said, place = capsys.readouterr().out, f"{tmp_path}/"
    assert f"sweep {place}preset.yaml state-dir={place}s lr=0.1 --out {place}o --profile" in said
    assert "--profile quick --workers 3 --accept-mixed --cell fedssa-" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--cell="], "--cell: '' is not allowed"),
        (["--out", ""], "--out: '' is not allowed"),
        (["--out=preset.yaml", "--dry-run"], "preset.yaml' is not a folder"),
        (["--print", "--json"], "--print cannot be used with --json"),
        (["--print", "--dry-run"], "--print cannot be used with --dry-run"),
        (["name=x"], "name: not allowed here"),
        (["grid=3"], "grid: not allowed here"),
        (["--shard=\u0661/\u0662"], "--shard: "),
    ],
)
def test_words_that_would_do_nothing_are_refused(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    Path("preset.yaml").write_text(yaml.safe_dump({"dataset": "digits", "grid": {"seed": [0]}}))
    assert execute(["sweep", "preset.yaml", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["preset.yaml"]


def test_shards_are_disjoint_and_complete(cells) -> None:
    parts = [shard(cells, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(cell.name for part in parts for cell in part) == sorted(c.name for c in cells)
    assert shard(cells, "9/9") == []
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(UserError, match="--shard"):
            shard(cells, wrong)
