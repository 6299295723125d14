"""Real processes on loopback, TLS and authentication on: same bytes, intruders, full disks."""

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from network.federation import EXAMPLES, Federation, simulated_hash
from network.programs import Process, wait_for

from fedhet.deploy.certs import make
from fedhet.engines.system import free_ports, script

pytestmark = pytest.mark.network


def intrude(federation: Federation, folder: Path) -> dict[str, Process]:
    """SuperNodes that may not join, each for another reason."""
    other = make(folder / "other", ["127.0.0.1"], ["stranger"])
    address, ports = f"127.0.0.1:{federation.port}", free_ports(4)
    trusted = ["--root-certificates", str(federation.tls.credentials.ca)]
    key = ["--auth-supernode-private-key", str(other.client("stranger"))]
    mine = ["--auth-supernode-private-key", str(federation.tls.credentials.client("0"))]
    attempts = {
        "no key": trusted,
        "unregistered key": trusted + key,
        "wrong CA": ["--root-certificates", str(other.ca), *mine],
        "plain text": ["--insecure", "--max-retries", "2"],
    }
    intruders = {}
    for port, (name, words) in zip(ports, attempts.items(), strict=False):
        command = [script("flower-supernode"), "--superlink", address, "--port", str(port), *words,
                 "--node-config", "partition-id=0 num-partitions=3"]  # fmt: skip
        log = federation.folder / f"intruder-{name.replace(' ', '-')}.log"
        intruders[name] = Process(command, log, federation.env).start()
        federation.started.append(intruders[name])
    return intruders


def check_refused(intruders: dict[str, Process]) -> None:
    for name, intruder in intruders.items():
        wait_for(lambda intruder=intruder: not intruder.running(), f"{name} gives up")
        assert intruder.popen.returncode != 0, name
        assert not intruder.said("SuperNode ID"), name
    assert intruders["wrong CA"].said("CERTIFICATE_VERIFY_FAILED")


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


def test_same_bytes_as_the_simulation_beside_intruders_and_clients_that_cannot_save(
    federation, small_disk, tmp_path, monkeypatch
):
    """With a method that is not ours, installed on every node.

    The disk of client 2 fills up in round 3; intruders are refused, and the round in progress does
    not notice.
    """
    monkeypatch.syspath_prepend(EXAMPLES)
    own, lost = {}, set()
    if small_disk is not None:
        own[2], lost = ("--partition", "2/3", "--state", str(small_disk)), {(3, "2")}
    federation.whole(own)
    run = federation.run("same", method="fedrep:METHOD")
    wait_for(lambda: federation.training(0), "a round")
    intruders = intrude(federation, tmp_path)
    summary = run.result()
    assert {(f["round"], f["client"]) for f in summary["failures"]} == lost
    for failure in summary["failures"]:  # a word goes up; which folder it is stays in the log
        found = re.fullmatch(r"state \(its log: no. (\d+)\): [^/]*", failure["reason"])
        assert found, failure
        said = f"failed (no. {found.group(1)}): Refused: state '"
        assert federation.nodes[int(failure["client"])].said(said) == 1
    if small_disk is not None:
        assert federation.nodes[2].said("No space left") == 1
        kept = sorted(path.name for path in small_disk.rglob("*.safetensors"))
        assert kept == ["00000001.safetensors", "00000002.safetensors"]
    assert summary["method"] == "fedrep:METHOD"
    assert summary["run_sha256"] == simulated_hash(tmp_path, lost, method="fedrep:METHOD")
    check_refused(intruders)


def private_folder(folder: Path, classes: str) -> Path:
    """Some digits as an image folder: ten PNG files per class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    for name in classes:
        (folder / name).mkdir(parents=True)
        wanted = images[labels == int(name) % 10][:20] if name.isdigit() else images[:20]
        for i, image in enumerate(wanted):
            pixels = (image.reshape(8, 8) * 15).astype("uint8")
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_sites_with_own_folders_and_models_equal_the_simulation_on_their_partition_file(
    federation, tmp_path
):
    """Each site has its own photographs and its own architecture, and its own test images."""
    models, classes = ["cnn-5", "cnn-4", "cnn-3"], ["a", "b"]
    private_folder(tmp_path / "pool", "ab")
    lines = []
    for path in sorted((tmp_path / "pool").rglob("*.png")):
        k, part = int(path.stem) % 3, ("train", "train", "test", "val")[int(path.stem) % 4]
        name = path.relative_to(tmp_path / "pool").as_posix()
        lines.append((k, f"{name},{k},{part}\n"))
        (tmp_path / str(k) / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / str(k) / name)
    everybody = tmp_path / "partition.csv"
    everybody.write_text("path,client,split\n" + "".join(line for _, line in lines))
    configs = {}
    for k, model in enumerate(models):
        own = tmp_path / f"{k}.csv"
        own.write_text("path,client,split\n" + "".join(line for j, line in lines if j == k))
        data = str(tmp_path / str(k))
        configs[k] = ("--data", data, "--model", model, "--split", str(own))
    federation.whole(configs)
    same = {"method": "fedmrl", "dataset": "image-folder", "classes": ",".join(classes),
            "rounds": 2}  # fmt: skip
    summary = federation.run("sites", **same).result()
    assert summary["failures"] == []
    assert summary["run_sha256"] == simulated_hash(
        tmp_path, data_path=str(tmp_path / "pool"), partition="file",
        partition_file=str(everybody),
        models=models, **same,
    )  # fmt: skip


def test_private_images_and_own_models(federation, tmp_path):
    """Two hospitals with images of their own; a third member takes the name of the first."""
    folders = {k: private_folder(tmp_path / str(k), c) for k, c in enumerate(("012", "23", "13"))}
    more = {1: ("--model", "cnn-4", "--device", "cpu"), 2: ("--name", "0")}
    federation.whole({k: ("--data", str(f), *more.get(k, ())) for k, f in folders.items()})
    run = federation.run("private", clients=0, classes="0,1,2,3", rounds=1)
    summary = run.result()
    assert summary["clients"] == 2
    (failure,) = summary["failures"]
    assert failure["reason"].startswith("client id '0' is not the name that this node's key is")
    partition = (run.folder / "partition.csv").read_text().split()
    assert partition == ["client,0,1,2,3", "0,16,16,16,0", "1,0,0,16,16"]
    rows = list(csv.DictReader((run.folder / "clients.csv").open()))
    assert {(row["client"], row["model"]) for row in rows} == {
        ("0", "cnn-5"), ("1", "cnn-4"),
    }  # fmt: skip
    for folder in folders.values():
        shutil.rmtree(folder)
