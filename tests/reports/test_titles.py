"""What settings are called: as their preset says, else by data, N and C."""

import json
import shlex
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from written_runs import make_run

from fedhet import layout
from fedhet.config.load import build_config, read_overrides
from fedhet.errors import UserError
from fedhet.reading.structured import read_yaml
from fedhet.reports.reading import read_runs
from fedhet.reports.runs import pack
from fedhet.reports.settings import Arm, Setting, arrange, split_config
from fedhet.reports.titles import name_all, presets
from fedhet.sweeps.grid import read_cells, title_of

DIGITS = {
    "dataset": "digits", "clients": 10, "fraction": 1.0, "classes_per_client": 4, "batch_size": 16,
    "local_epochs": 1,
}  # fmt: skip


def named(*places: Path) -> list[Setting]:
    runs, left_out = read_runs(places)
    settings = arrange(runs, left_out)
    name_all(settings)
    return settings


def test_records_are_called_as_the_preset_whose_keys_they_have(tmp_path):
    make_run(tmp_path, "standalone", 0, [[1.0] * 4] * 14, **DIGITS)
    make_run(tmp_path, "fedssa", 0, [[1.0] * 4] * 3, **DIGITS, lr=0.1)
    long, short = sorted(named(tmp_path), key=lambda one: -one.keys["rounds"])
    assert (long.title, long.commands) == (
        "Digits, 10 clients", ["fedhet sweep compare/digits --out DIR"],
    )  # fmt: skip
    assert short.title == "Digits, 10 clients, T = 3, lr = 0.1"
    assert short.commands == ["fedhet sweep compare/digits rounds=3 lr=0.1 --out DIR"]


def test_other_data_with_a_presets_keys_is_not_called_as_it(tmp_path):
    keys = {"classes_per_client": 2, "clients": 100, "fraction": 0.1, "local_epochs": 5}
    for data in ("cifar10", "cats"):
        folder = {"dataset": "image-folder", "data_path": f"/x/{data}.zip", "name": data}
        make_run(tmp_path, "standalone", 0, [[1.0] * 4], **keys, **folder)
    cats, cifar = named(tmp_path)
    assert cifar.title == "CIFAR-10, 100 clients, T = 1"
    assert cats.title == "Cats, N = 100, C = 10 %"
    assert cats.commands[0].startswith("fedhet run METHOD dataset=image-folder data-path=cats.zip ")


def test_a_title_may_be_filled_in_from_the_setting(tmp_path):
    keys = {"dataset": "cifar10", "clients": 100, "fraction": 0.3, "local_epochs": 10}
    make_run(tmp_path, "standalone", 0, [[1.0] * 4] * 500, **keys)
    (one,) = named(tmp_path)
    assert one.title == "CIFAR-10, C = 30 %"
    assert one.commands == ["fedhet sweep paper/participation --out DIR"]


def test_no_two_settings_are_called_the_same(tmp_path):
    for momentum in (0.5, 0.9):
        for side in (32, 64):
            name = f"{momentum}-{side}"
            own = {"momentum": momentum, "image_size": side}
            make_run(tmp_path, "standalone", 0, [[1.0] * 4], name=name, **own)
    titles = [one.title for one in named(tmp_path)]
    assert len(set(titles)) == 4
    assert "CIFAR-100, N = 4, C = 50 %, image-size = 32, momentum = 0.5" in titles


def test_precision_is_a_mark_and_no_part_of_a_title(tmp_path):
    make_run(tmp_path, "standalone", 0, [[1.0] * 4] * 14, **DIGITS, precision="bf16")
    (one,) = named(tmp_path)
    assert one.title == "Digits, 10 clients"
    assert one.commands == ["fedhet sweep compare/digits precision=bf16 --out DIR"]


def test_a_sweep_of_ones_own_says_what_it_is_called_also_in_packed_records(tmp_path):
    path = make_run(tmp_path / "own", "standalone", 0, [[1.0] * 4])
    index = tmp_path / "own" / "sweeps" / "mine" / "sweep.json"
    index.parent.mkdir(parents=True)
    cells = [{"name": path.name}]
    index.write_text(json.dumps({"sweep": "mine", "note": "", "title": "My cats", "cells": cells}))
    (one,) = named(tmp_path / "own")
    assert one.title == "My cats"
    (run,) = read_runs([tmp_path / "own"])[0]
    packed = pack(run, tmp_path / "packed")
    (again,) = named(packed)
    assert again.title == "My cats"
    for title, said in (
        ("{data:>999999999}", "{data:>999999999}"),
        ("{seed} {rounds}", "{seed} 1"),
    ):
        packed.write_text(packed.read_text().replace(again.title, title))
        (again,) = named(packed)
        assert again.title == said
        again.title = title
    packed.write_text(packed.read_text().replace(again.title, "x" * 5000))
    assert "title: no text of at most 4096" in read_runs([packed])[1][0].reason


def test_a_shipped_title_is_not_kept_by_what_overrides_made_another_setting(tmp_path):
    path = make_run(tmp_path / "own", "fd", 0, [[1.0] * 4], dataset="digits")
    index = tmp_path / "own" / "sweeps" / "digits" / "sweep.json"
    index.parent.mkdir(parents=True)
    told = {"sweep": "digits", "note": "", "title": "Digits, 10 clients"}
    index.write_text(json.dumps(told | {"cells": [{"name": path.name}]}))
    (one,) = named(tmp_path / "own")
    assert one.title == "Digits, N = 4, C = 50 %"


def test_a_preset_says_its_title_and_no_cell_has_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("title: My cats\ndataset: digits\ngrid: {seed: [0]}\n")
    assert title_of(path) == "My cats" and len(read_cells(path, [])) == 1
    with pytest.raises(UserError, match="title: it stands in the preset"):
        read_cells(path, ["title=other"])
    path.write_text("title: [1]\ngrid: {seed: [0]}\n")
    with pytest.raises(UserError, match=r"title: '\[1\]' is not allowed"):
        title_of(path)


def test_every_shipped_grid_has_a_title():
    base = layout.folder("configs")
    grids = [path for path in base.rglob("*.yaml") if "grid" in read_yaml(path)]
    assert len(grids) > 15 and len(presets()) == len(grids)


@pytest.mark.parametrize(
    ("preset", "file", "title"),
    [
        ("compare/ag-news", "ag_news.csv", "AG News, 10 clients"),
        ("compare/cifar10-n10", "cifar10.zip", "CIFAR-10, 10 clients"),
        ("compare/cifar100-n100", "cifar100.zip", "CIFAR-100, 100 clients"),
        ("compare/har", "har.npz", "HAR, 46 phones and watches"),
        ("compare/heart", "heart.csv", "Heart, 4 hospitals"),
        ("compare/office-caltech", "office_caltech.zip", "Office-Caltech, 6 sites"),
        ("paper/non-iid-dirichlet", "", "CIFAR-10, Dirichlet 0.1"),
    ],
)
def test_a_cell_of_a_preset_is_called_as_the_preset_says(preset, file, title):
    """Where a record has as many clients as there are, a preset may have 0."""
    words = [f"data-path={file}"] if file else []
    if "office" in preset or preset.endswith("-n10"):
        words.append("partition-file=sites.csv")
    cell = read_cells(layout.folder("configs") / f"{preset}.yaml", words)[0]
    keys, _, _ = split_config(cell.config.flat())
    setting = Setting(keys | {"clients": keys["clients"] or 46}, [Arm(cell.config.method, {})])
    name_all([setting])
    assert setting.title == title
    assert setting.commands[0] == " ".join([f"fedhet sweep {preset}", *words, "--out DIR"])


def test_a_command_is_words_of_a_shell_whatever_the_record_says(tmp_path):
    labels = {"not ill": ["0"], "ill": ["1", "2"]}
    targets = ("a`id`", "x'; touch PWN; ''", "$(id)", "plain")
    for number, target in enumerate(targets):
        make_run(
            tmp_path, "fd", 0, [[1.0] * 4], name=str(number), dataset="table", target=target,
            labels=labels, data_path="/x/my\n    data; id.csv",
        )  # fmt: skip
    commands = [one.commands[0] for one in named(tmp_path)]
    assert not any("\n" in command for command in commands)
    words = [shlex.split(command) for command in commands]
    assert {word for own in words for word in own if word.startswith("target=")} == {
        f"target={target}" for target in targets
    }
    keys = [word for word in words[0] if "=" in word and not word.endswith(("=P", "=S"))]
    given = read_overrides(keys)
    assert given["data-path"] == "my data; id.csv"
    assert build_config(given | {"method": "fd"}).flat()["labels"] == labels
    (plain,) = [command for command in commands if "plain" in command]
    assert " dataset=table " in plain and " target=plain " in plain


def test_a_title_takes_no_more_room_than_it_shows(tmp_path):
    make_run(tmp_path, "fd", 0, [[1.0] * 4])
    ((run,), _) = read_runs([tmp_path])
    keys = split_config(run.config)[0] | {"models": ["m" * 4000] * 50}
    setting = Setting(keys, [Arm("fd", {}, {(0, 0): replace(run, title="{models}" * 400)})])
    tracemalloc.start()
    name_all([setting])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert setting.title == "m" * 79 + "…" and most < 20e6
