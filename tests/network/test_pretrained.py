"""Nodes that bring pretrained networks: frozen, with adapters and whole ones in one run."""

import pytest
from helpers.pretrained import WORDS, bert, vit, weights
from network.federation import simulated_hash

pytestmark = pytest.mark.network


def sentences(folder):
    """A file of texts for each site, and networks with tokenizers of their own."""
    for k in range(3):
        rows = "".join(
            f'"{WORDS[j % 3]}, {j % 7} {WORDS[j % 2]}",{"xyz"[j % 3]}\n' for j in range(60 + k)
        )
        (folder / f"{k}.csv").write_text("text,label\n" + rows)
    own = bert(folder.parent / "bert"), bert(folder.parent / "other", "oil goal atom", 4)
    models = [f"hf:{own[0]} frozen", f"hf:{own[1]} lora=2", f"hf:{own[0]}"]
    return models, {"dataset": "texts", "target": "label", "text": "text", "length": 12,
                    "vocabulary": 100, "classes": "x,y,z", "models": "fasttext"}  # fmt: skip


def pictures(folder):
    """Networks of three libraries over shares of one data set."""
    files = {name: weights(folder.parent / name, name) for name in ("timm:test_vit", "resnet18")}
    models = [f"hf:{vit(folder.parent / 'vit', 32)} frozen",
              f"timm:test_vit lora=2 weights={files['timm:test_vit']}",
              f"resnet18 weights={files['resnet18']}"]  # fmt: skip
    return models, {"dataset": "synthetic:300x4", "models": "cnn-5"}


@pytest.mark.parametrize("make", [sentences, pictures])
def test_nodes_own_networks_equal_the_simulation(federation, tmp_path, make):
    """What a node keeps and computes is what the simulation does; no path of it goes up."""
    data = tmp_path / "sites"
    data.mkdir()
    models, keys = make(data)
    files = sorted(data.iterdir())
    shares = [("--data", str(f)) for f in files] or [("--partition", f"{k}/3") for k in range(3)]
    federation.whole({k: (*own, "--model", models[k]) for k, own in enumerate(shares)})
    keys |= {"rounds": 2, "representation": 16, "batch_size": 8, "lr": 0.05}
    run = federation.run(f"pretrained-{make.__name__}", **keys)
    summary = run.result()
    assert summary["failures"] == []
    rows = (run.folder / "clients.csv").read_text()
    assert "/lora-2" in rows and str(tmp_path) not in rows
    same = {"partition": "natural", "data_path": str(data)} if files else {}
    assert summary["run_sha256"] == simulated_hash(tmp_path, **keys | same | {"models": models})
