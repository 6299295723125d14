"""``fedhet init``: what is understood of a file, and a preset that runs it."""

import shutil

import numpy as np
import pytest
from PIL import Image

from fedhet.cli.app import execute
from fedhet.config.load import load_config
from fedhet.data.inputs import Reading
from fedhet.data.rows import open_rows
from fedhet.data.table import guess
from fedhet.errors import UserError
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
    assert "'outcome' is used as the class" in told and "'ward' is used as the site" in told
    assert "sex: 2 categories: f, m" in told and "seen: left out: dates" in told
    assert told.splitlines()[-1] == "fedhet run p.yaml"
    config = load_config(tmp_path / "p.yaml")
    assert config.ignore == ("patient id", "seen") and config.classes == ("0", "1")
    data, partition = load_partition(config, config.clients)
    assert partition.ids == ("ward-0", "ward-1", "ward-2") and data.inputs.columns == ("age", "sex")
    assert execute(["init", "p.csv"]) == 2
    assert "'p.yaml' already exists" in capsys.readouterr().err
    given = {"site=outcome": ("outcome",), "site=": (), "categories=[ward]": ()}
    for number, (word, site) in enumerate(given.items()):
        assert execute(["init", "p.csv", "target=sex", word, "--out", f"{number}.yaml"]) == 0
        config = load_config(tmp_path / f"{number}.yaml")
        assert config.target == "sex" and config.site == site


def test_a_file_without_header_and_a_file_of_texts(tmp_path, capsys):
    (tmp_path / "a.data").write_text("".join(f"{k % 9},{k * 7 % 31},{k % 3}\n" for k in range(60)))
    assert execute(["init", "a.data"]) == 0
    assert load_config(tmp_path / "a.yaml").columns == ("c1", "c2", "c3")
    text = "".join(f"{'ham' if k % 2 else 'spam'}\tsee {k} of you there today\n" for k in range(80))
    (tmp_path / "s.tsv").write_text(text)
    assert execute(["init", "s.tsv"]) == 0
    assert load_config(tmp_path / "s.yaml").columns == ("c1", "c2")
    said = "".join(f'"the {k} quick brown fox jumps over the dog",{k % 2}\n' for k in range(80))
    (tmp_path / "t.csv").write_text("review,sentiment\n" + said)
    assert execute(["init", "t.csv"]) == 0
    config = load_config(tmp_path / "t.yaml")
    assert (config.dataset, config.text, config.target) == ("texts", "review", "sentiment")


def test_the_axes_of_windows_are_told_and_written(tmp_path, capsys):
    np.savez(tmp_path / "w.npz", x=np.zeros((60, 32, 2)), y=np.arange(60) % 2)
    assert execute(["init", "w.npz"]) == 0
    assert "is taken as 2 channels of 32 steps" in capsys.readouterr().out
    assert load_config(tmp_path / "w.yaml").axes == "time-channels"


def test_the_classes_of_a_folder_of_images_are_told_and_written(tmp_path, capsys):
    for number in range(30):
        folder = tmp_path / "eyes" / ("ill" if number < 10 else "well")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "eyes" / "empty").mkdir()
    (tmp_path / "eyes" / "empty" / "no.png").write_text("no image")
    for classes in ((), ("ill", "well")):
        assert execute(["init", "eyes"]) == 0
        assert "30 images; 2 classes: ill (10), well (20)" in capsys.readouterr().out
        config = load_config(tmp_path / "eyes.yaml")
        assert config.classes == classes
        assert load_partition(config, config.clients)[0].classes == ("ill", "well")
        (tmp_path / "eyes.yaml").unlink()
        shutil.rmtree(tmp_path / "eyes" / "empty", ignore_errors=True)


@pytest.mark.parametrize(
    ("ill", "metric"), [("k%2", "accuracy"), ("k%3 if k > 9 else 3", "balanced_accuracy")]
)
def test_the_headline_sees_rare_classes(tmp_path, ill, metric):
    rows = "".join(f"{30 + k * 7 % 41},{eval(ill, {'k': k})}\n" for k in range(200))
    (tmp_path / "p.csv").write_text("age,ill\n" + rows)
    assert execute(["init", "p.csv"]) == 0
    config = load_config(tmp_path / "p.yaml")
    assert config.metric == metric
    preset, rare = (tmp_path / "p.yaml").read_text(), "else 3" in ill
    assert ("\n# class-weights: balanced  # " in preset) == rare == (config.lr == 0.01)
    for split, advice in ((8, 1, 1), 'split="6:1:3"'), ((6, 1, 3), "several partition seeds"):
        found = load_partition(config.model_copy(update={"split": split}), config.clients)[1]
        few = [one for one in found.warnings if "few test examples of a class: client 0 has" in one]
        assert [advice in one for one in few] == [True] * rare, few


FILES = {  # columns by a formula of the row's number, and the target that is guessed; none: asked
    "low": ("low=k%2 age=20+k*7%30 race=1+k%3 ftv=k%4", "low"),
    "lbw": ("race=1+k%3 smoke=k%2 lbw=k%3//2 bwt=2000+k*13", "lbw"),
    "outcome": ("treat='ab'[k%2] visit=k%4 type=1+k%3 died=k%5//4 los=k*k%90", "died"),
    "class": ("pclass=1+k%3 age=k*7%50 class='xyz'[k%3] survived=k%2", "survived"),
    "case": ("id=100+k age=k*7%50 PatientStatus='ab'[k%2] dose=k%3", "PatientStatus"),
    "last": ("mass=k*k%97 wing=k*7%50 kind='abc'[k%3]", "kind"),
    "count": ("y=k*k*7%103 trt='ab'[k%2] base=k*3%41 age=18+k%31", ""),
    "treatment": ("treat='abc'[k%3] before=k*k%97 after=k*7%50", ""),
    "codes": ("size=1+k%6 sex='fm'[k%2] bill=k*k%97/7", ""),
    "measurements": ("a=k*0.37 b=k*1.7", ""),
}


@pytest.mark.parametrize("name", FILES)
def test_the_target_is_guessed_or_asked_for(tmp_path, name):
    form, wanted = FILES[name]
    columns = dict(one.split("=") for one in form.split())
    rows = [",".join(str(eval(one, {"k": k})) for one in columns.values()) for k in range(90)]
    (tmp_path / "p.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    file = open_rows([tmp_path / "p.csv"])
    if wanted:
        assert guess(file, Reading())[0].target == wanted
        return
    asked = "which column is the class. target=COLUMN"
    if name == "measurements":
        asked = "one of a, b; divide a .* target=b labels=.{low: ..75.6, high: 75.6"
    with pytest.raises(UserError, match=f"target: .*{asked}"):
        guess(file, Reading())


def test_what_may_be_wrong_is_said_at_once(tmp_path, capsys):
    names, classes = ("Mercy", "mercy", "Hope"), ("ill", "Ill", "well", "well")
    remarks = ("came back twice in week", "had no pain at all on day", "and so on until")
    rows = "".join(
        f"{'n.d.' if k == 7 else k / 8},{remarks[k % 3]} {k % 45},{names[k % 3]},{classes[k % 4]}\n"
        for k in range(90)
    )
    (tmp_path / "p.csv").write_text("bp,remarks,hospital,outcome\n" + rows)
    assert execute(["init", "p.csv"]) == 0
    told = capsys.readouterr().out
    assert "  bp: numbers 0 to 11.125, 1 gaps with 'n.d.'" in told
    assert "  remarks: left out: sentences, or too many values" in told
    assert "sites that differ only in case or spaces" in told and "'Mercy' and 'mercy'" in told
    assert "warning: classes 'Ill', 'ill' differ only in case" in told
    rows = "".join(f"{k % 9},{'ny'[k % 2]},{k % 2 or k % 5},{k % 2}\n" for k in range(90))
    (tmp_path / "copy.csv").write_text("age,alive,stage,survived\n" + rows)
    assert execute(["init", "copy.csv"]) == 0
    told = [one for one in capsys.readouterr().out.splitlines() if one.startswith("warning: ")]
    assert told == [
        "warning: column 'alive' alone gives 'survived' in 100.0% of the rows: if it is known only "
        "after 'survived', add it to ignore"
    ]
    rare = "".join(
        f"{k % 9},{int(k in (5, 7))}\n" for k in range(30_000)
    )  # in no row of the sample
    (tmp_path / "rare.csv").write_text("age,died\n" + rare)
    assert execute(["init", "rare.csv"]) == 0 and "alone gives" not in capsys.readouterr().out
    (tmp_path / "one.csv").write_text("age,outcome\n" + "5,1\n" * 90)
    assert execute(["init", "one.csv", "target=outcome"]) == 2
    assert "have the same class" in capsys.readouterr().err and not (tmp_path / "one.yaml").exists()
