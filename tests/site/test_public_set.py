"""The public data set: nobody's examples, the same everywhere, and only where a method asks."""

from typing import ClassVar

import numpy as np
import pytest
from helpers.pictures import image_folder
from PIL import Image

from fedhet.clients.standalone import StandaloneClient
from fedhet.config.registry import METHODS, Method
from fedhet.errors import RunFailed, UserError
from fedhet.site.local_data import load_partition, open_public, own_copy, public_digest
from fedhet.strategies.base import MethodStrategy
from fedhet.testing import simulate, small


class Everybody(MethodStrategy):
    public_set = "everybody"
    metric_ranges: ClassVar = {"seen": (0.0, 100.0)}


class Looking(StandaloneClient):
    """Looks at the public images when it trains."""

    def extra_metrics(self):
        return {"seen": float(len(self.public.sample(4, self.config.seed, self.round)))}


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    monkeypatch.setitem(METHODS, "everybody", Method(Everybody, Looking, ""))


def pictures(path, seed=0):
    return str(image_folder(path, "xy", 5, seed))


def deployed(tmp_path, copies, **changes):
    """A run over nodes of which number k has the public images of ``copies[k]``, or none."""

    def give(grid):
        for k, copy in enumerate(copies):
            own = {"state-dir": str(tmp_path / f"s{k}")} | ({"public-path": copy} if copy else {})
            grid.contexts[100 + k].node_config.update(own)

    config = small(tmp_path, clients=len(copies), start_timeout=1.0, rounds=1, **changes)
    return simulate(config, before=give, simulated=False)[0]


def test_none_of_it_is_a_clients_and_it_comes_through_the_cache(tmp_path, monkeypatch):
    folder = pictures(tmp_path / "public")
    with_ = small(tmp_path, method="everybody", public_path=folder)
    without = small(tmp_path, method="standalone")
    (_, parts), (_, others) = (load_partition(config, 3) for config in (with_, without))
    for one, other in zip(parts.clients, others.clients, strict=True):
        assert np.array_equal(one.train, other.train) and np.array_equal(one.test, other.test)
    dataset = open_public(with_)
    assert (len(dataset.labels), dataset.classes) == (10, ("x", "y"))
    run, _ = simulate(with_)
    assert run.read_rounds()[-1]["seen"] == 4
    counts = (run.path / "partition.csv").read_text().splitlines()
    assert counts[0] == "client,class-0,class-1,class-2,class-3"


def test_copies_in_other_places_are_the_same_and_other_images_are_refused(tmp_path):
    copies = [pictures(tmp_path / f"copy-{k}") for k in range(2)]
    copies += [pictures(tmp_path / "other", seed=1), ""]
    own = pictures(tmp_path / "server")
    run = deployed(tmp_path, copies, method="everybody", public_path=own, min_replies=2)
    (record,) = run.read_rounds()
    assert (record["replied"], record["seen"]) == (2, 4)
    reasons = [failure["reason"] for failure in record["failures"]]
    assert any("another public data set ('10 examples, sha256" in reason for reason in reasons)
    assert any(reason.startswith("public-data (its log") for reason in reasons), reasons
    assert not any("\n" in reason or str(tmp_path) in reason for reason in reasons)


def test_a_deployed_node_takes_no_path_from_the_run(tmp_path):
    config = small(tmp_path, method="everybody", public_path="/server/s/path")
    assert own_copy(config, {"public-path": "/mine"}, simulated=False).public_path == "/mine"
    assert own_copy(config, {}, simulated=False).public_path == ""
    assert own_copy(config, {"public-path": "/mine"}, simulated=True) is config
    with pytest.raises(RunFailed, match="public-data: its copy of the public data set is missing"):
        deployed(tmp_path, ["", ""], method="everybody", public_path=pictures(tmp_path / "p"))


def test_one_pixel_one_label_or_another_size_is_another_digest(tmp_path):
    config = small(tmp_path, method="everybody", public_path=pictures(tmp_path / "a"))
    found = {public_digest(config), public_digest(config.model_copy(update={"image_size": 16}))}
    changed = tmp_path / "b"
    pictures(changed)
    pixels = np.asarray(Image.open(changed / "x" / "000.png")).copy()
    pixels[0, 0, 0] ^= 128
    Image.fromarray(pixels).save(changed / "x" / "000.png")
    moved = tmp_path / "c"
    pictures(moved)
    (moved / "y").rename(moved / "z")
    for folder in (changed, moved):
        found.add(public_digest(config.model_copy(update={"public_path": str(folder)})))
    assert len(found) == 4


def test_a_wrong_public_set_is_one_line_that_says_which(tmp_path):
    config = small(tmp_path, method="everybody", public_path=str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"public data set: data-path.*none") as error:
        open_public(config)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="public data set: dataset 'digit' is unknown"):
        open_public(config.model_copy(update={"public_dataset": "digit"}))
