"""``fedhet init``: what is understood of a file, and a preset that runs it."""

import pytest

from fedhet.cli import execute
from fedhet.config.load import load_config
from fedhet.site.local_data import load_partition

ROWS = "".join(
    f"{k * 977},{20 + k * 7 % 50},{'fm'[k % 2]},2020-01-{1 + k % 28:02},ward {k % 3},{k % 2}\n"
    for k in range(90)
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))


def test_a_table_is_described_and_its_preset_runs(tmp_path, capsys):
    (tmp_path / "p.csv").write_text("patient id,age,sex,seen,ward,outcome\n" + ROWS)
    assert execute(["init", "p.csv"]) == 0
    told = capsys.readouterr().out
    assert "'outcome' is taken for the class" in told and "'ward' is taken for whose" in told
    assert "sex: 2 categories: f, m" in told and "seen: left out: dates" in told
    assert told.splitlines()[-1] == "fedhet run p.yaml"
    config = load_config(tmp_path / "p.yaml")
    assert config.ignore == ("patient id", "seen") and config.classes == ("0", "1")
    data, partition = load_partition(config, config.clients)
    assert partition.ids == ("ward-0", "ward-1", "ward-2") and data.inputs.columns == ("age", "sex")
    assert execute(["init", "p.csv"]) == 2
    assert "is already there: --out" in capsys.readouterr().err


def test_what_the_owner_knows_overrules_the_guess(tmp_path, capsys):
    (tmp_path / "p.csv").write_text("id,age,sex,seen,ward,outcome\n" + ROWS)
    assert execute(["init", "p.csv", "target=sex", "site=outcome", "--out", "o.yaml"]) == 0
    config = load_config(tmp_path / "o.yaml")
    assert config.target == "sex" and config.site == ("outcome",)


def test_a_file_without_header_and_a_file_of_texts(tmp_path, capsys):
    (tmp_path / "a.data").write_text("".join(f"{k % 9},{k * 7 % 31},{k % 3}\n" for k in range(60)))
    assert execute(["init", "a.data"]) == 0
    assert load_config(tmp_path / "a.yaml").columns == ("c1", "c2", "c3")
    said = "".join(f'"the {k} quick brown fox jumps over the dog",{k % 2}\n' for k in range(80))
    (tmp_path / "t.csv").write_text("review,sentiment\n" + said)
    assert execute(["init", "t.csv"]) == 0
    config = load_config(tmp_path / "t.yaml")
    assert (config.dataset, config.text, config.target) == ("texts", "review", "sentiment")


def test_a_file_without_a_class_says_what_to_do(tmp_path, capsys):
    (tmp_path / "m.csv").write_text("a,b\n" + "".join(f"{k * 0.37},{k * 1.7}\n" for k in range(80)))
    assert execute(["init", "m.csv"]) == 2
    assert "target=COLUMN names one of a, b; labels={low: ..5" in capsys.readouterr().err
