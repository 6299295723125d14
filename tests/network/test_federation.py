"""Real processes on loopback, TLS and authentication on: same bytes, own data, full disks."""

import re
import subprocess

import numpy as np
import pytest
import torch
from helpers.pictures import write_images
from network.federation import EXAMPLES, simulated_hash

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


def test_sites_with_own_folders_and_models_equal_the_simulation(federation, tmp_path):
    """Each site has its own photographs and its own architecture, and its own test images.

    Of a class, a site has twelve to train with: fewer than five it would not tell of.
    """
    models, classes = ["cnn-5", "cnn-4", "cnn-3"], ["a", "b"]
    noise = np.random.default_rng(0).integers(0, 256, (3, 2, 16, 8, 8, 3), dtype=np.uint8)
    for k, site in enumerate(noise):
        for name, images in zip(classes, site, strict=True):
            (tmp_path / "sites" / str(k) / name).mkdir(parents=True)
            write_images(tmp_path / "sites" / str(k) / name, torch.from_numpy(images))
    same = {"method": "fedmrl", "dataset": "image-folder", "classes": ",".join(classes),
            "rounds": 2}  # fmt: skip
    sites = str(tmp_path / "sites")
    federation.whole({k: ("--data", f"{sites}/{k}", "--model", m) for k, m in enumerate(models)})
    summary = federation.run("sites", **same).result()
    assert summary["failures"] == []
    twin = same | {"data_path": sites, "partition": "natural", "models": models}
    assert summary["run_sha256"] == simulated_hash(tmp_path, **twin)
