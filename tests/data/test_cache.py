"""The cache: decoded once, whole or not at all, shared by processes."""

import multiprocessing
import os
import resource
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.programs import python
from PIL import Image

from fedhet.cli.app import execute
from fedhet.data import cache
from fedhet.data.cache import open_dataset
from fedhet.errors import UserError


@pytest.fixture
def folder(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    return tmp_path / "in"


def _open(folder, tmp_path, **options):
    options = {"image_size": 8} | options
    return open_dataset(
        "image-folder", data_path=str(folder), cache_dir=tmp_path / "cache", **options
    )


def _entries(tmp_path) -> list[Path]:
    return [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]


def test_the_second_open_only_maps(folder, tmp_path, monkeypatch):
    first = _open(folder, tmp_path)
    monkeypatch.setattr(cache, "_write", None)  # nothing is decoded again
    second = _open(folder, tmp_path)
    assert isinstance(second.examples, np.memmap) and not second.examples.flags.writeable
    assert np.array_equal(first.examples, second.examples)
    assert np.array_equal(first.examples[0], np.asarray(Image.open(folder / "cat/1.png")))
    assert second.labels.dtype == np.int64 and second.classes == ("cat", "dog")
    assert first.examples.shape == (3, 8, 8, 3) and second.paths[2] == "dog/1.png"


def test_whatever_changes_the_images_changes_the_entry(folder, tmp_path):
    assert _open(folder, tmp_path, image_size=4).examples.shape == (3, 4, 4, 3)
    assert _open(folder, tmp_path, classes=["dog", "cat"]).labels.tolist() == [0, 1, 1]
    Image.new("RGB", (8, 8), (9, 9, 9)).save(folder / "cat/1.png")
    assert _open(folder, tmp_path).examples[0].tolist() == [[[9, 9, 9]] * 8] * 8
    (folder / "dog/1.png").rename(folder / "dog/2.png")
    assert _open(folder, tmp_path).paths[2] == "dog/2.png"
    archive = tmp_path / "a.zip"
    for names in (["cat/1.png"], ["cat/1.png", "cat/2.png"]):
        with zipfile.ZipFile(archive, "w") as out:
            for name in names:
                out.write(folder / name, name)
        assert len(_open(archive, tmp_path).examples) == len(names)


@pytest.mark.parametrize("damage", ["examples.bin", "meta.json", "labels", "of a killed process"])
def test_a_damaged_entry_is_rebuilt(folder, tmp_path, damage):
    before = _open(folder, tmp_path)
    pixels = np.array(before.examples)
    entry = _entries(tmp_path)[0]
    if damage == "labels":
        arrays = dict(np.load(entry / "rows.npz"))
        np.savez(entry / "rows.npz", **arrays | {"labels": np.array([1, 0, 0])})
    elif (entry / damage).exists():
        (entry / damage).write_bytes((entry / damage).read_bytes()[:-1])
    else:
        entry.rename(entry.with_name(f".{entry.name}.tmp"))
    after = _open(folder, tmp_path)
    assert np.array_equal(after.examples, pixels)
    assert after.labels.tolist() == [0, 0, 1] and after.paths == before.paths
    assert _entries(tmp_path) == [entry]


def test_many_processes_build_once(folder, tmp_path, monkeypatch):
    build = cache._write
    context = multiprocessing.get_context("fork")
    barrier, built, answers = context.Barrier(4), context.Queue(), context.Queue()
    monkeypatch.setattr(cache, "_write", lambda *args: built.put(1) or build(*args))

    def work():
        barrier.wait()
        answers.put(int(_open(folder, tmp_path).examples.sum()))

    workers = [context.Process(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    sums = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert built.get(timeout=60) == 1 and built.empty()
    assert set(sums) == {int(_open(folder, tmp_path).examples.sum())}


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    """RLIMIT_FSIZE makes the real write fail half-way, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match=f"^cache folder {tmp_path}/cache: cannot write.*$"):
            open_dataset("synthetic:200", cache_dir=tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _entries(tmp_path) == []
    assert len(open_dataset("synthetic:200", cache_dir=tmp_path / "cache").examples) == 200


def test_the_cache_keeps_to_its_limit(tmp_path, monkeypatch):
    place = tmp_path / "cache"

    def opened(seed, name="synthetic:100"):  # 307,200 bytes, and what is known of them
        return open_dataset(name, seed=seed, cache_dir=place)

    opened(0)
    (first,) = _entries(tmp_path)
    monkeypatch.setenv("FEDHET_CACHE_MAX", "700k")
    left = place / f".{'0' * 64}.tmp"
    left.mkdir()
    opened(1)
    assert first in _entries(tmp_path) and not left.exists()
    os.utime(first, (1, 1))
    opened(0)  # which is used again
    opened(2)
    assert first in _entries(tmp_path) and len(_entries(tmp_path)) == 2
    with pytest.raises(UserError, match=r"takes 3,072,000 bytes .* 716,800 .*FEDHET_CACHE_MAX"):
        opened(3, "synthetic:1000")
    assert len(_entries(tmp_path)) == 2
    monkeypatch.setenv("FEDHET_CACHE_MAX", "much")
    with pytest.raises(UserError, match="FEDHET_CACHE_MAX: 'MUCH' is not allowed"):
        opened(4)


def test_synthetic_is_seeded_and_balanced(tmp_path):
    data, again, other = (
        open_dataset("synthetic:1000x20", cache_dir=tmp_path / place, seed=seed)
        for place, seed in (("a", 3), ("b", 3), ("a", 4))
    )
    assert np.array_equal(data.examples, again.examples)
    assert not np.array_equal(data.examples, other.examples)
    assert np.bincount(data.labels).tolist() == [50] * 20
    flat = data.examples[data.labels == 0].reshape(50, -1)
    assert len(np.unique(flat, axis=0)) == 50, "images of a class are copies"


def test_torchvision_sets_are_pooled_and_a_failed_download_is_one_line(tmp_path, monkeypatch):
    import torchvision.datasets  # two seconds, which every worker would take to collect

    def fake(root, train, download):
        assert root == str(tmp_path / "cache/downloads") and download
        images = np.full((2, 32, 32, 3), 10 if train else 20, dtype=np.uint8)
        return SimpleNamespace(data=images, targets=[1 - train, 1], classes=("plane", "car"))

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fake)
    data = open_dataset("cifar10", cache_dir=tmp_path / "cache")
    assert data.labels.tolist() == [0, 1, 1, 1] and data.classes == ("plane", "car")
    assert data.examples[:, 0, 0, 0].tolist() == [10, 10, 20, 20]
    monkeypatch.setattr(torchvision.datasets, "CIFAR100", None)  # calling it fails
    with pytest.raises(UserError, match="dataset cifar100: '.*mine' .* download failed .TypeError"):
        open_dataset("cifar100", data_path=str(tmp_path / "mine"), cache_dir=tmp_path / "cache")


def test_other_values_of_the_data_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "a,b,y\n0,0,0\n" + "".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(1, 60))
    file = tmp_path / "t.csv"
    file.write_text(rows)
    words = "target=y models=mlp-1 engine=inline rounds=1 dataset=table partition=iid clients=2"
    words = [*words.split(), "local-epochs=1", f"data-path={file}", "--name", "r"]
    assert execute(["run", "quickstart", *words]) == 0
    file.write_text(rows.replace("\n0,0,0\n", "\n9,0,0\n"))
    assert execute(["resume", "runs/r", "rounds=2"]) == 2
    assert "its data has other values" in capsys.readouterr().err
    file.write_text(rows)
    assert execute(["resume", "runs/r", "rounds=2"]) == 0


LOADER = """
import numpy as np
from pathlib import Path
from tools.values import FACTOR

def load(path):
    number = int((Path(path) / "deep" / "number.txt").read_text())
    return np.full((8, 8, 8), number * FACTOR, np.uint8), np.arange(8) % 2, ["a", "b"]
"""
OPEN = (
    "from fedhet import plugins; from fedhet.data.cache import open_dataset; plugins.look_here(); "
    "print(open_dataset('loader:load', data_path='../data', image_size=16).examples[0, 0, 0, 0])"
)


def test_a_function_is_called_again_when_its_files_or_modules_change(tmp_path):
    """Each in a process of its own, as commands are."""
    place, data = tmp_path / "work", tmp_path / "data" / "deep"
    (place / "tools").mkdir(parents=True)  # a folder without __init__.py is a package, too
    data.mkdir(parents=True)
    (place / "loader.py").write_text(LOADER)
    env = os.environ | {"FEDHET_CACHE": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    for number, factor, value in (("7", 1, 7), ("9", 1, 9), ("9", 2, 18)):
        (data / "number.txt").write_text(number)
        (place / "tools" / "values.py").write_text(f"FACTOR = {factor}\n")
        assert int(python("-c", OPEN, cwd=place, env=env).stdout) == value
