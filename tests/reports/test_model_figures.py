"""The figures that open clients' states: drawn from a real run, absent with a reason otherwise."""

import shutil

import numpy as np
import pytest
import torch

from fedhet.data.preparation import normalise
from fedhet.export.save import open_state
from fedhet.reports.comparison import Comparison, compare
from fedhet.reports.model_figures import representations
from fedhet.reports.model_gate import modelled
from fedhet.reports.reading import read_runs
from fedhet.reports.run_models import examples_of, open_runs
from fedhet.reports.settings import arrange
from fedhet.site.local_data import load_partition
from fedhet.testing import simulate, small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    for method in ("standalone", "pfedes"):
        simulate(small(path, method=method, name=method))
    return path / "runs"


def comparisons(folder) -> list[Comparison]:
    runs, left_out = read_runs([folder])
    return compare(arrange(runs, left_out), "standalone")


def test_both_figures_are_drawn_from_states_and_repeat(folder):
    first = modelled(comparisons(folder), wanted=True)
    assert [picture.absent for picture in first] == ["", ""]
    assert first == modelled(comparisons(folder), wanted=True)
    t_sne, enhanced = first
    assert t_sne.svg.count("silhouette") == 4 and "pFedES, by class" in t_sne.svg
    assert "3 clients" in t_sne.caption
    assert enhanced.svg.count("<image") == 6  # one image of each of three clients, twice


def test_without_states_or_images_the_reason_is_given(folder, tmp_path):
    reasons = [picture.absent for picture in modelled(comparisons(folder), wanted=False)]
    assert reasons == ["left out by --no-models"] * 2
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    for state in bare.glob("*/state"):
        shutil.rmtree(state)
    reasons = [picture.absent for picture in modelled(comparisons(bare), wanted=True)]
    assert all("no run folder of this report has its clients' states" in one for one in reasons)
    shutil.rmtree(bare / "pfedes")
    shutil.copytree(folder / "standalone" / "state", bare / "standalone" / "state")
    t_sne, enhanced = modelled(comparisons(bare), wanted=True)
    assert t_sne.svg and "no method with states makes images" in enhanced.absent


def test_an_extractor_of_representations_makes_no_images(tmp_path):
    for method in ("standalone", "pfedafm"):
        simulate(small(tmp_path, method=method, name=method))
    t_sne, enhanced = modelled(comparisons(tmp_path / "runs"), wanted=True)
    assert t_sne.svg and "no method with states makes images" in enhanced.absent


def test_images_are_the_clients_own_where_some_were_never_evaluated(tmp_path):
    keys = {"clients": 8, "fraction": 0.25, "rounds": 2, "evaluate_all": False}
    simulate(small(tmp_path, dataset="synthetic:400x4", **keys))
    ((run,), _) = read_runs([tmp_path / "runs"])
    sampled = [score.client for score in run.clients]
    assert len(sampled) < 8
    (one,) = compare(arrange([run], []))
    assert one.levels[0].never_sampled == 8 - len(sampled)
    (opened,) = open_runs(one)
    dataset, partition = load_partition(opened.config, 8)
    for client, (images, _) in zip(sampled, examples_of(opened, sampled, 99), strict=True):
        own = partition.clients[partition.ids.index(client)].test
        assert np.array_equal(images.numpy(), dataset.examples[own])


def test_a_representation_is_what_the_header_takes_in(folder):
    (state,) = (folder / "pfedes" / "state").glob("*/0")
    model = open_state(state).model
    images = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    with torch.inference_mode():
        expected = model.parts["model"].features(normalise(images)).numpy()
    np.testing.assert_array_equal(representations(model, images), expected)
