"""Rows of one person, recording or scan: in one split of one client; and splits by time."""

import re

import numpy as np
import pytest
from helpers.partitions import partition
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedhet.errors import Refused, UserError
from fedhet.site.local_data import load_dataset, load_local, load_partition, without_rare
from fedhet.testing import small

PARTS = ("train", "val", "test")
RNG = np.random.default_rng(0)


def _places(made, groups) -> list[set]:
    """The client and split of each group's rows."""
    places: dict[int, set] = {}
    for k, client in enumerate(made.clients):
        for part in PARTS:
            for group in groups[getattr(client, part)]:
                places.setdefault(int(group), set()).add((k, part))
    return list(places.values())


@st.composite
def _grouped(draw):
    """Labels and groups: of one class each, or of several; of one size, or of many."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    sizes = rng.integers(1, draw(st.integers(2, 9)), draw(st.integers(60, 120)))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    pure = draw(st.booleans())
    labels = rng.integers(0, 3, len(sizes))[groups] if pure else rng.integers(0, 3, len(groups))
    order = rng.permutation(len(groups))
    return labels[order], groups[order].astype(np.int32)


@settings(deadline=None, max_examples=40)
@given(_grouped(), st.sampled_from(["iid", "dirichlet", "quantity", "classes-per-client"]))
def test_a_group_has_one_place(rows, kind):
    labels, groups = rows
    keys = {} if kind in {"iid", "classes-per-client"} else {"alpha": 5.0}
    try:
        made = partition(labels, kind, 3, groups=groups, grouped=True, group_by="patient", **keys)
    except UserError as error:  # a draw or a class that suits no one, as without groups
        assert "no draw" in str(error) or "no whole group" in str(error)
        return
    places = _places(made, groups)
    assert {len(one) for one in places} == {1} and len(places) == len(np.unique(groups))
    for client in made.clients:
        assert len(client.train) and len(client.test)
    if kind == "iid":  # as even as groups of up to eight rows allow
        assert np.ptp(made.counts(labels, 3).sum(axis=1)) <= 24


@pytest.mark.parametrize(("groups", "expected"), [(2, (1, 0, 1)), (3, (1, 1, 1)), (10, (8, 1, 1))])
def test_of_each_class_groups_are_split_as_rows_are(groups, expected):
    codes = np.repeat(np.arange(2 * groups, dtype=np.int32), 5)
    labels = (codes >= groups).astype(np.int64)
    made = partition(labels, "iid", 1, groups=codes, grouped=True, group_by="patient")
    for label in (0, 1):
        parts = [getattr(made.clients[0], part) for part in PARTS]
        counts = [len(np.unique(codes[one][labels[one] == label])) for one in parts]
        assert tuple(counts) == expected


def test_persons_with_all_classes_keep_the_shares_of_the_split():
    """Twenty persons who do each of four things: two or three are test, not one for each thing."""
    groups = np.repeat(np.arange(20, dtype=np.int32), 40)
    labels = np.tile(np.arange(4), 200)
    made = partition(labels, "iid", 1, groups=groups, grouped=True, group_by="person")
    (client,) = made.clients
    assert [len(np.unique(groups[getattr(client, part)])) for part in PARTS] == [16, 2, 2]


def test_what_a_run_without_groups_does_is_said():
    groups = np.repeat(np.arange(40, dtype=np.int32), 5)
    made = partition(groups % 2, "iid", 2, groups=groups, group_by="patient_id")
    tests, train = (
        np.concatenate([getattr(c, p) for c in made.clients]) for p in ("test", "train")
    )
    seen = np.isin(groups[tests], groups[train]).sum()
    (line,) = [one for one in made.warnings if "group=patient_id" in one]
    assert line.startswith(f"{seen} of {len(tests)} test images have their patient_id in train")


def test_a_group_in_two_sites_is_said():
    groups = np.repeat(np.arange(20, dtype=np.int32), 5)
    sites = (np.arange(100) >= 52).astype(np.int32)  # the eleventh in both
    said = []
    for seed in range(8):
        made = partition(
            groups % 2, "natural", sites=sites, site_names=("a", "b"), groups=groups,
            grouped=True, group_by="patient", seed=seed,
        )  # fmt: skip
        both = {part for one in _places(made, groups) if len(one) > 1 for _, part in one}
        lines = [one for one in made.warnings if "two sites" in one]
        assert bool(lines) == (both == {"train", "test"})
        said += lines
    assert said[0].startswith("1 groups by patient lie in two sites or more")


TABLE = "patient,visit,x,sex,ill\n" + "".join(
    f"P{p:02},{2001 + v},{p + v / 10},{'mf'[p % 2]},{p // 2 % 2}\n"
    for p in range(30)
    for v in range(4)
)


def _table(tmp_path, text=TABLE, **keys):
    (tmp_path / "t.csv").write_text(text)
    keys = {"partition": "iid", "clients": 2, "target": "ill"} | keys
    return small(
        tmp_path, dataset="table", data_path=str(tmp_path / "t.csv"), models=["mlp-1"], **keys
    )


def test_a_table_by_patients_and_by_time(tmp_path):
    dataset, made = load_partition(_table(tmp_path, group="patient"), 2)
    assert dataset.grouped and dataset.inputs.columns == ("visit", "x", "sex")
    assert {len(one) for one in _places(made, dataset.groups)} == {1}
    assert "30 groups by patient" in dataset.notes[0]
    dataset, made = load_partition(_table(tmp_path, split_by="visit", ignore="patient"), 2)
    assert dataset.inputs.columns == ("x", "sex")
    for client in made.clients:
        years = [set(dataset.times[getattr(client, part)]) for part in PARTS]
        assert years == [{2001, 2002}, {2003}, {2004}]
    assert any("have their patient in train" in line for line in made.warnings)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"group": "nobody"}, "group: .* has no column 'nobody'"),
        ({"split_by": "sex"}, "line 2 column 'sex': 'm' is neither a date nor .*split-by"),
        ({"group": "patient", "clients": 40}, "clients 40"),
    ],
)
def test_keys_that_cannot_be_followed_are_one_line(tmp_path, keys, reason):
    config = _table(tmp_path, **keys)
    with pytest.raises(UserError, match=reason):
        load_partition(config, config.clients)
    config = config.model_copy(update={"dataset": "synthetic", "target": "", "group": ("p",)})
    with pytest.raises(UserError, match="group: 'p' is not allowed: dataset"):
        load_partition(config, 2)


def test_a_node_keeps_groups_and_counts_them(tmp_path):
    """Five visits of a patient are one patient: a class of 14 is rare."""
    config = _table(
        tmp_path, group="patient", categories="{sex: [m, f]}", labels="{well: [0], ill: [1]}"
    )
    node = {"data-dir": config.data_path, "name": "a"}
    data = load_local(config, node, simulated=False)
    parts = [set(data.dataset.groups[getattr(data.split, part)]) for part in PARTS]
    assert sum(map(len, parts)) == 30 and all(parts)
    assert without_rare(data, 5)[1] == []
    with pytest.raises(Refused, match="no class has min-class=14 training groups"):
        without_rare(data, 14)
    (tmp_path / "t.csv").write_text(TABLE.replace("patient", "person"))
    with pytest.raises(UserError, match="group: .* has no column 'patient'"):
        load_local(config, node, simulated=False)


def _recordings(tmp_path, count, steps):
    """Recordings of two sites and two classes, one below the other in a file."""
    rows = [
        f"{t},{RNG.normal():.3f},{'uv'[k % 2]},{k // 2 % 2}"
        for k in range(count)
        for t in range(steps + k % 3)  # of equal length they are windows
    ]
    (tmp_path / "r.csv").write_text("\n".join(["t,a,site,y", *rows]) + "\n")
    config = small(
        tmp_path, dataset="signals", data_path=str(tmp_path / "r.csv"), time="t", target="y",
        site="site", length=5, partition="natural", clients=0, models=["conv1d-1"],
    )  # fmt: skip
    return load_partition(config, 0)


def test_windows_of_one_recording_stay_together(tmp_path):
    dataset, made = _recordings(tmp_path, 24, 22)
    assert len(dataset.labels) == 96 and "24 groups by recording" in dataset.notes[0]
    assert {len(one) for one in _places(made, dataset.groups)} == {1}
    assert not any("cut by time" in line for line in made.warnings)
    assert "the test figures rest on 4 groups by recording: several seeds say more" in made.warnings


def test_a_long_recording_is_cut_by_time(tmp_path):
    """One of each class and site: its last windows are test."""
    dataset, made = _recordings(tmp_path, 4, 100)
    for client in made.clients:
        assert [len(getattr(client, part)) for part in PARTS] == [32, 4, 4]
        for label in (0, 1):
            train, val, test = (
                one[dataset.labels[one] == label] for one in (client.train, client.val, client.test)
            )
            assert max(train) < min(val) and max(val) < min(test)
    assert any("fewer than 3 recordings, and was cut by time" in line for line in made.warnings)


def _images(tmp_path, names, **keys):
    """Write images of two classes in turn; return a run's configuration."""
    image = Image.fromarray(np.zeros((16, 16, 3), np.uint8))
    for k, name in enumerate(names):
        (tmp_path / "in" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "in" / "ab"[k % 2] / f"{name}.png")
    return small(
        tmp_path, dataset="image-folder", data_path=str(tmp_path / "in"), image_size=16,
        partition="iid", clients=2, **keys,
    )  # fmt: skip


def test_images_are_grouped_by_their_paths(tmp_path):
    names = [f"p{patient:02}_{k}_left" for k in range(3) for patient in range(16)]
    config = _images(tmp_path, names, group="{group}_*.png")
    dataset, made = load_partition(config, 2)
    assert "16 groups by {group}_*.png" in dataset.notes[0]
    assert [path[2:5] for path in dataset.paths[:4]] == ["p00", "p00", "p00", "p02"]
    assert dataset.groups[:4].tolist() == [0, 0, 0, 2]
    assert {len(one) for one in _places(made, dataset.groups)} == {1}
    for pattern, reason in (
        ("{group}_0_*.png", "misses 32 images: a/p00_1_left.png"),
        ("patient", "must have one {group}, such as"),
    ):
        with pytest.raises(UserError, match=re.escape(reason)):
            load_partition(config.model_copy(update={"group": (pattern,)}), 2)
    folder = config.model_copy(update={"group": ("{group}/*",)})
    assert load_dataset(folder).groups.tolist() == [0] * 24 + [1] * 24


SUFFIX = "{group}{suffix}.png"
NAMED = {  # names of images; the pattern that is said, and the names of the first group
    "letters": ([f"{k:05}{end}" for k in range(20) for end in ("", "a", "b")], SUFFIX,
                ["00000", "00000a", "00000b"]),
    "numbers": ([f"scan_{k}_{e}" for k in range(20) for e in (1, 2)], SUFFIX,
                ["scan_0_1", "scan_0_2"]),
    "persons": ([f"sub-{k // 3:02}_ses-{k % 3}_T1w" for k in range(60)], "{group}_*.png",
                [f"sub-00_ses-{k}_T1w" for k in range(3)]),
    "in both classes": ([f"{k // 4:03}{'pq'[k // 2 % 2]}" for k in range(80)],
                        "{folder}/{group}{suffix}.png", ["000p", "000q"]),
    **{form: ([form.format(k) for k in range(100)], "", []) for form in ("img_{:04}", "x{}y")},
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_images_whose_names_are_alike_are_said_with_the_pattern_to_copy(tmp_path, case):
    names, pattern, first = NAMED[case]
    config = _images(tmp_path, names)
    lines = [line for line in load_partition(config, 2)[1].warnings if "share their stem" in line]
    assert [re.search("group='?([^ ']*)", line)[1] for line in lines] == [pattern] * bool(pattern)
    if pattern:
        dataset, made = load_partition(config.model_copy(update={"group": (pattern,)}), 2)
        assert {len(one) for one in _places(made, dataset.groups)} == {1}
        own = [path[2:-4] for path in np.array(dataset.paths)[dataset.groups == 0]]
        assert sorted(own) == first and len(names) % len(first) == 0
        assert np.ptp(np.bincount(dataset.groups)) == 0


def test_arrays_of_windows_are_grouped(tmp_path):
    subject, path = np.repeat(np.arange(12), 6), tmp_path / "s.npz"
    np.savez(path, x=RNG.normal(size=(72, 2, 8)), y=subject % 2, subject=subject, id=np.arange(5))
    keys = {"dataset": "signals", "data_path": str(path), "partition": "iid", "clients": 2,
            "models": ["conv1d-1"]}  # fmt: skip
    dataset, made = load_partition(small(tmp_path, **keys), 2)
    assert not dataset.grouped and "have their subject in train" in "".join(made.warnings)
    dataset, made = load_partition(small(tmp_path, **keys, group="subject"), 2)
    assert {len(one) for one in _places(made, dataset.groups)} == {1}


def test_test_examples_that_stand_in_train_are_counted(tmp_path):
    rows = "".join(f"{k % 7},{k % 2}\n" for k in range(140))
    dataset, made = load_partition(_table(tmp_path, "x,ill\n" + rows), 2)
    tests = sum(len(one.test) for one in made.clients)
    (line,) = dataset.about_repeats(made.clients)
    assert line.startswith(f"{tests} of {tests} test examples also stand in train")
    dataset, made = load_partition(_table(tmp_path, seed=1), 2)
    assert dataset.about_repeats(made.clients) == []
