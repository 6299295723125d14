"""Every kind of data through every operation: cut and resumed, sites, nodes, exported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from fedhet.config.schema import RunConfig
from fedhet.export.model import export, predict
from fedhet.site.local_data import load_partition
from fedhet.testing import cut_and_resume, simulate, small

COUNT = 40  # examples of a site, half of each class
SITES = ("north", "south")


def _images(dtype: type, high: int) -> Callable[[Path, np.random.Generator], None]:
    def write(path: Path, rng: np.random.Generator) -> None:
        for k in range(COUNT):
            (path / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, high, (16, 16)).astype(dtype)
            Image.fromarray(pixels).save(path / "ab"[k % 2] / f"{k}.png")

    return write


def _arrays(path: Path, rng: np.random.Generator) -> None:
    x = rng.normal(size=(COUNT, 2, 8)).astype(np.float32)
    np.savez(path, x=x, y=np.array(["a", "b"])[np.arange(COUNT) % 2])


def _rows(header: str, row: Callable[[int, np.random.Generator], str]) -> Any:
    def write(path: Path, rng: np.random.Generator) -> None:
        path.write_text("\n".join([header, *(row(k, rng) for k in range(COUNT))]) + "\n")

    return write


def _recording(k: int, rng: np.random.Generator) -> str:
    return "\n".join(f"{t},{rng.normal():.3f},{'ab'[k % 2]}" for t in range(8 + k % 5))


def _gaps(k: int, rng: np.random.Generator) -> str:
    return f"{'' if k % 7 == 0 else round(rng.normal(), 2)},{['f', 'm', ''][k % 3]},{'ab'[k % 2]}"


def _text(k: int, rng: np.random.Generator) -> str:
    return f'"{" ".join(rng.choice(["red", "blue", "green"], 6))}, {k}",{"ab"[k % 2]}'


class Kind(NamedTuple):
    """How a site's data are written, the end of its path, and the keys of a run."""

    write: Callable[[Path, np.random.Generator], None]
    end: str
    keys: dict[str, Any]


FOLDER = {"dataset": "image-folder", "image_size": 16, "models": ["cnn-5"]}
SIGNALS = {"dataset": "signals", "models": ["conv1d-5"], "target": "y"}
TABLE = {"dataset": "table", "models": ["mlp-5"], "target": "y"}
KINDS = {
    "image 8 bit": Kind(_images(np.uint8, 256), "", FOLDER),
    "image 16 bit": Kind(_images(np.uint16, 4096), "", FOLDER),
    "signal": Kind(_arrays, ".npz", SIGNALS),
    "recordings": Kind(_rows("t,x,y", _recording), ".csv", SIGNALS | {"time": "t", "length": 4}),
    "table": Kind(_rows("u,v,y", lambda k, rng: f"{k % 7},{rng.normal():.3f},{'ab'[k % 2]}"),
                  ".csv", TABLE),
    "gaps and categories": Kind(_rows("u,sex,y", _gaps), ".csv",
                                TABLE | {"categories": "{sex: [f, m]}"}),
    "texts": Kind(_rows("words,y", _text), ".csv",
                  {"dataset": "texts", "models": ["fasttext"], "text": "words", "target": "y"}),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def _config(kind: Kind, tmp_path: Path, **changes: Any) -> RunConfig:
    """A folder of two sites; without changes the first of them, dealt to two clients."""
    root = tmp_path / "data"
    root.mkdir()
    for seed, site in enumerate(SITES):
        kind.write(root / f"{site}{kind.end}", np.random.default_rng(seed))
    path = root if changes else root / f"{SITES[0]}{kind.end}"
    values = {"data_path": str(path), "partition": "iid", "clients": 2, "rounds": 2} | kind.keys
    return small(tmp_path, **values | changes)


def test_a_run_that_is_cut_goes_on_to_the_same_end(kind, tmp_path):
    config = _config(kind, tmp_path)
    whole, _ = simulate(config)
    lines = cut_and_resume(config, 2).read_rounds()
    assert [line["replied"] for line in lines] == [2, 2]
    assert lines[-1]["sha256"] == whole.read_rounds()[-1]["sha256"]


def test_each_of_a_folder_of_sites_is_a_client(kind, tmp_path):
    config = _config(kind, tmp_path, partition="natural", rounds=1)
    dataset, made = load_partition(config, 0)
    assert made.ids == SITES and (np.bincount(dataset.sites) >= COUNT).all()
    (line,) = simulate(config)[0].read_rounds()
    assert line["replied"] == 2 and line["test_accuracy_mean"] is not None


def test_two_nodes_bring_their_own(kind, tmp_path):
    config = _config(kind, tmp_path, rounds=1, classes=["a", "b"])

    def give(grid):
        for number, site in enumerate(SITES):
            place = Path(config.data_path) / f"{site}{kind.end}"
            grid.contexts[100 + number].node_config.clear()
            grid.contexts[100 + number].node_config.update({
                "data-dir": str(place), "name": site, "state-dir": str(tmp_path / site)
            })  # fmt: skip

    folder, _ = simulate(config, before=give, simulated=False)
    (line,) = folder.read_rounds()
    assert line["replied"] == 2 and not line["failures"]
    clients = [row.split(",")[0] for row in folder.partition.read_text().split()]
    assert clients == ["client", *SITES]


def test_an_exported_model_answers_for_the_file(kind, tmp_path):
    config = _config(kind, tmp_path)
    run, _ = simulate(config)
    export(next(run.path.glob("state/*/0")), tmp_path / "model")
    dataset, _ = load_partition(config, 2)
    done = predict(tmp_path / "model", [Path(config.data_path)], tmp_path / "out.csv")
    assert len(done.frame) == len(dataset.labels)  # of recordings the windows
    assert np.allclose(done.frame[["p_a", "p_b"]].sum(axis=1), 1, atol=1e-3)
