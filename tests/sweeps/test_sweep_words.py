"""The words of `fedhet sweep`: printed commands, shards, and what is refused."""

from pathlib import Path

import pytest
import yaml

from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.sweeps.sweep import shard


def test_printed_commands_say_all_that_was_said(tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "preset.yaml"
    path.write_text(yaml.safe_dump({"dataset": "digits", "grid": {"seed": [0]}}))
    options = ["--accept-mixed", "--workers=3", "--profile=quick"]
    assert execute(["sweep", str(path), f"--out={tmp_path / 'out'}", "--print", *options]) == 0
    said = capsys.readouterr().out
    assert "--profile quick --workers 3 --accept-mixed --cell fedssa-" in said
    monkeypatch.chdir(tmp_path)
    assert execute(["sweep", "preset.yaml", "state-dir=s", "lr=0.1", "--out=o", "--print"]) == 0
    said = capsys.readouterr().out
    place = f"{tmp_path}/"
    assert f"sweep {place}preset.yaml state-dir={place}s lr=0.1 --out {place}o --cell" in said


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


def test_a_shard_beyond_the_cells_has_nothing_to_do(tmp_path, capsys) -> None:
    path = tmp_path / "preset.yaml"
    path.write_text(yaml.safe_dump({"dataset": "digits", "grid": {"seed": [0, 1]}}))
    assert execute(["sweep", str(path), f"--out={tmp_path / 'out'}", "--shard=3/9"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "out")


def test_shards_are_disjoint_and_complete(cells) -> None:
    parts = [shard(cells, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(cell.name for part in parts for cell in part) == sorted(c.name for c in cells)
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(UserError, match="--shard"):
            shard(cells, wrong)
