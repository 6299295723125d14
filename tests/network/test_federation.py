"""Real processes on loopback, TLS and authentication on: same bytes, own data, full disks."""

import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from helpers.pictures import write_images
from network.federation import EXAMPLES, PRESET, simulated_hash

from fedhet.config.load import build_config
from fedhet.data.partition import split_client
from fedhet.site.local_data import open_private

pytestmark = pytest.mark.network


@pytest.fixture
def small_disk(federation, tmp_path):
    """A folder for two generations of 2.7 MB, but not for the two that are kept and a third.

    None where we may not mount.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", str(disk)]
    if subprocess.run(words, check=False).returncode:
        yield None
        return
    yield disk
    federation.nodes[2].end()
    subprocess.run(["umount", str(disk)], check=False)


def test_same_bytes_as_the_simulation_beside_a_client_that_cannot_save(
    federation, small_disk, tmp_path, monkeypatch
):
    """With a method of others that every node has. In round 3 the disk of client 2 is full."""
    monkeypatch.syspath_prepend(EXAMPLES)
    own, lost = {}, set()
    if small_disk is not None:
        own[2], lost = ("--partition", "2/3", "--state", str(small_disk)), {(3, "2")}
    federation.whole(own)
    run = federation.run("same", method="fedrep:METHOD")
    summary = run.result()
    assert {(f["round"], f["client"]) for f in summary["failures"]} == lost
    for failure in summary["failures"]:  # a word goes up; which folder it is stays in the log
        found = re.fullmatch(r"state \(its log: no. (\d+)\): [^/]*", failure["reason"])
        assert found, failure
        said = f"failed (no. {found.group(1)}): Refused: state '"
        assert federation.nodes[int(failure["client"])].said(said) == 1
    if small_disk is not None:
        assert federation.nodes[2].said("No space left") == 2  # of the question and the failure
        kept = sorted(path.name for path in small_disk.rglob("*.safetensors"))
        assert kept == ["00000001.safetensors", "00000002.safetensors"]
    assert summary["method"] == "fedrep:METHOD"
    assert summary["run_sha256"] == simulated_hash(tmp_path, lost, method="fedrep:METHOD")


def test_sites_with_own_folders_and_models_equal_the_simulation_on_their_partition_file(
    federation, tmp_path
):
    """Each site has its own photographs and its own architecture, and its own test images.

    Of a class, a site has eight to train with: fewer than five it would not tell of.
    """
    models, classes = ["cnn-5", "cnn-4", "cnn-3"], ["a", "b"]
    noise = np.random.default_rng(0).integers(0, 256, (2, 48, 8, 8, 3), dtype=np.uint8)
    for name, images in zip(classes, noise, strict=True):
        (tmp_path / "pool" / name).mkdir(parents=True)
        write_images(tmp_path / "pool" / name, torch.from_numpy(images))
    for path in sorted((tmp_path / "pool").rglob("*.png")):
        place = tmp_path / str(int(path.stem) % 3) / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place / path.name)
    same = {"method": "fedmrl", "dataset": "image-folder", "classes": ",".join(classes),
            "rounds": 2}  # fmt: skip
    config, configs, lines = build_config(PRESET | same), {}, ["path,client,split"]
    for k, model in enumerate(models):
        data = str(tmp_path / str(k))
        configs[k] = ("--data", data, "--model", model)
        images = open_private(config, data)
        every = np.arange(len(images.paths))
        split = split_client(every, images, config.split, config.data_seed, str(k))
        for part in ("train", "val", "test"):
            lines += [f"{images.paths[n]},{k},{part}" for n in getattr(split, part)]
    everybody = tmp_path / "partition.csv"
    everybody.write_text("\n".join([*lines, ""]))
    federation.whole(configs)
    summary = federation.run("sites", **same).result()
    assert summary["failures"] == []
    assert summary["run_sha256"] == simulated_hash(
        tmp_path, data_path=str(tmp_path / "pool"), partition="file",
        partition_file=str(everybody),
        models=models, **same,
    )  # fmt: skip
