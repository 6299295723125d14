"""Networks from folders and files of weights, frozen ones and adapters, through whole runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.pretrained import beit, bert, library, texts, vit, wav, weights
from helpers.products import ANY, short
from helpers.tiny import run_by_name
from safetensors.torch import save_file
from torchvision.models import get_model

from fedhet.config.load import build_config
from fedhet.data.inputs import SIGNAL, TOKENS, Inputs
from fedhet.errors import UserError
from fedhet.export.model import export, load_model
from fedhet.files import read_tensors
from fedhet.models.names import parse
from fedhet.models.pretrained import adapters
from fedhet.models.zoo import build_model
from fedhet.rng import torch_seeded
from fedhet.site.local_data import assigned_model, check_no_weights
from fedhet.testing import cut_and_resume, make_client, simulate, small

IMAGES = {"dataset": "synthetic:60x3", "image_size": 16, "representation": 16, "partition": "iid"}
TEXT = Inputs(TOKENS, (12,), 100)


def built(name, inputs, classes=3, d=6):
    with torch_seeded(1, "test"):
        return build_model(name, classes=classes, d=d, inputs=inputs)


@pytest.mark.parametrize(
    ("name", "says"),
    [("resnet18 frozen", "freezes random weights: add weights=FILE"),
     ("resnet18 lora=0 weights=a", "has lora=0: a rank is 1 to 1024"),
     ("hf:a frozen lora=4", "cannot be frozen and have adapters"),
     ("hf:a pool=max", "has pool=max: cls or mean"),
     ("hf:a weights=b", "has weights= beside those of its folder"),
     ("cnn-5 sparse", "is not of the form NAME")],
)  # fmt: skip
def test_names_that_mean_nothing(name, says):
    with pytest.raises(UserError, match=says):
        build_config({"models": name})


def test_a_name_has_a_part_that_is_told_and_one_that_stays(tmp_path):
    named = parse("hf:/data/my bert lora=8 layers=query grad-checkpointing")
    assert (named.plain, named.lora, named.layers) == ("hf:/data/my bert", 8, "query")
    assert named.public == "hf:mybert/lora-8"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert parse(f"hf:{tmp_path} frozen").public == "hf:bert"


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_text_is_read_as_its_network_and_tokenizer_read_it(tmp_path, pool):
    transformers = library()
    folder = bert(tmp_path / "my bert")
    model = built(f"hf:{folder} pool={pool}", TEXT).eval()
    words = ["oil bank price, 3", "star", ""]
    ids = torch.from_numpy(model.encode(words)).long()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    plain = transformers.AutoModel.from_pretrained(folder).eval()
    hashes = torch.randint(0, 100, (3, 12))  # of the run, in front of the model's own
    with torch.no_grad():
        answers = model.network(torch.cat([hashes, ids], dim=1))
        for text, answer in zip(words, answers, strict=True):
            hidden = plain(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            expected = hidden[0] if pool == "cls" else hidden.mean(dim=0)
            assert torch.allclose(answer, expected, atol=1e-5)
        again = torch.relu(model.projection(answers))
        assert torch.allclose(model.features(ids), again, atol=1e-5)
    model.train()(ids).sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "embeddings" not in n)


def test_images_and_signals_and_what_does_not_fit(tmp_path):
    folder = vit(tmp_path / "vit")
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]})
    )
    model = built(f"hf:{folder}", Inputs.image(16)).eval()
    assert model.mean.flatten().tolist() == pytest.approx([-0.8, -0.6, -0.4])
    x = torch.rand(2, 3, 16, 16) * 2 - 1
    seen = ((x + 1) / 2 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / 0.5
    hidden = model.network.model(pixel_values=seen).last_hidden_state
    assert torch.allclose(model.answers(x), hidden[:, 0], atol=1e-5)
    signal = Inputs(SIGNAL, (1, 64))
    assert built(f"hf:{wav(tmp_path / 'wav')}", signal)(torch.rand(2, 1, 64)).shape == (2, 3)
    text = bert(tmp_path / "bert")
    for name, inputs, says in (
        (f"hf:{folder}", Inputs.image(20), r"takes no image of shape \(3, 20"),
        (f"hf:{folder}", TEXT, "reads images; this run's examples are tokens"),
        (f"hf:{tmp_path / 'wav'}", Inputs(SIGNAL, (2, 64)), "reads signals of one channel"),
        (f"hf:{text}", Inputs(TOKENS, (40,), 100), "length: 40 is not allowed: at most 32"),
        (f"hf:{text} lora=2 layers=nowhere", TEXT, "layers=nowhere is in no layer's name, such as"),
        (f"hf:{tmp_path / 'none'}", TEXT, "has no config.json"),
    ):
        with pytest.raises(UserError, match=says):
            built(name, inputs)


def test_no_pickle_is_opened_and_no_code_of_a_folder_runs(tmp_path):
    folder = bert(tmp_path / "bert")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="no file named model.safetensors"):
        built(f"hf:{folder}", TEXT)
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    about = json.loads((folder / "config.json").read_text())
    about |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModel": "code.M"}}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="cannot be opened"):
        built(f"hf:{folder}", TEXT)
    assert not (tmp_path / "ran").exists()


def test_adapters_start_without_effect_and_alone_are_trained(tmp_path):
    folder = bert(tmp_path / "bert")
    model = built(f"hf:{folder} lora=2 layers=query|dense", TEXT)
    whole = built(f"hf:{folder}", TEXT)
    ids = torch.from_numpy(model.encode(["oil goal"])).long()
    assert torch.allclose(model.network.eval()(ids), whole.network.eval()(ids), atol=1e-6)
    pairs = adapters(model)
    assert len(pairs) == 2 * 4 and all(a.shape[0] == b.shape[1] == 2 for a, b in pairs.values())
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert all(".lora_" in n or n.startswith(("projection", "head")) for n in trained)
    assert len(trained) == 2 * len(pairs) + 4
    file = weights(tmp_path, "mobilenet_v3_small")
    for layers in ("", " layers=^features"):
        model = built(f"mobilenet_v3_small lora=2{layers} weights={file}", Inputs.image(32))
        model(torch.rand(2, 3, 32, 32)).sum().backward()
        moving = [p for p in model.parameters() if p.requires_grad]
        assert adapters(model) and all(p.grad is not None for p in moving)
        norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        assert norms and not any(norm.training for norm in norms)


def test_checkpointing_changes_no_gradient(tmp_path):
    folder = vit(tmp_path / "vit")
    x = torch.rand(2, 3, 16, 16)
    slopes = []
    for name in (f"hf:{folder}", f"hf:{folder} grad-checkpointing"):
        model = built(name, Inputs.image(16))
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model(x).square().sum().backward()
        slopes.append([p.grad for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*slopes, strict=True))
    with pytest.raises(UserError, match="its BatchNorm would count each batch twice"):
        built("shufflenet_v2_x0_5 grad-checkpointing", Inputs.image(32))


# --- whole runs: kinds x (frozen, adapters, whole) x (run, resume, engines, export, predict) ------
# Nodes: tests/network/test_pretrained.py.


def run_keys(tmp_path, kind, how):
    """A run of two clients or three, and what of its examples an exported model is given."""
    if kind == "texts":
        keys = texts(tmp_path / "data") | {"batch_size": 8, "partition": "iid"}
        models = [f"hf:{bert(tmp_path / 'bert')}{how}",
                  f"hf:{bert(tmp_path / 'other', 'oil goal atom', 4)}{how}"]  # fmt: skip
    elif kind == "signals":
        draws = np.random.default_rng(7)
        y = np.arange(60) % 3
        x = (draws.integers(-900, 900, size=(60, 1, 64)) + 300 * y[:, None, None]).astype(np.int16)
        np.savez(tmp_path / "s.npz", x=x, y=y, subject=np.arange(60) // 20)
        keys = {"dataset": "signals", "data_path": str(tmp_path / "s.npz"), "site": "subject",
                "partition": "natural", "clients": 3}  # fmt: skip
        models = [f"hf:{wav(tmp_path / 'wav')}{how}", "conv1d-5"]
    elif kind == "images":
        keys, models = dict(IMAGES), [f"hf:{vit(tmp_path / 'vit')}{how}", "cnn-5"]
    else:
        keys = IMAGES | {"image_size": 32}
        models = [f"{kind}{how} weights={weights(tmp_path / 'weights', kind)}", "cnn-5"]
    return {"clients": 2, "rounds": 2, "lr": 0.05, "representation": 16, **keys, "models": models}


LARGE = [
    pytest.param(kind, marks=pytest.mark.matrix) for kind in ("timm:test_vit", "mobilenet_v3_small")
]


@pytest.mark.parametrize("how", [" frozen", " lora=2", ""])
@pytest.mark.parametrize("kind", ["texts", "images", "signals", *LARGE])
def test_run_resume_engines_export_and_predict(tmp_path, kind, how):
    """What is frozen is in no state; an export has everything, its tokenizer too."""
    keys = run_keys(tmp_path, kind, how)
    config = small(tmp_path / "whole", method="fedssa", **keys)
    folder, _ = simulate(config)
    cut = cut_and_resume(small(tmp_path / "cut", method="fedssa", **keys), 1)
    elsewhere = run_by_name(small(tmp_path / "other", method="fedssa", engine="processes", **keys))
    hashes = {one["run_sha256"] for one in (folder.read_summary(), cut.read_summary(), elsewhere)}
    assert len(hashes) == 1
    client = sorted(folder.path.glob("state/*/*/"))[0]
    kept, _ = read_tensors(next(client.glob("0*.safetensors")), "pt")
    inner = [key for key in kept if key.startswith("model/network.")]
    assert bool(inner) == (how != " frozen")
    assert all(".lora_" in key for key in inner) == (how != "")
    assert (client / "answers-train.safetensors").exists() == (how == " frozen")
    row = folder.clients.read_text().splitlines()[1]
    assert str(tmp_path) not in row and (kind.split(":")[0] in row or "hf:" in row)
    export(client, tmp_path / "model")
    for used in {"bert", "vit", "wav", "weights"} & {path.name for path in tmp_path.iterdir()}:
        (tmp_path / used).rename(tmp_path / "gone")
    loaded, card = load_model(tmp_path / "model")
    assert str(tmp_path) not in json.dumps(card)
    own = {"texts": tmp_path / "data" / "t.csv", "signals": tmp_path / "s.npz"}
    side = keys.get("image_size", 1)
    images = np.random.default_rng(0).integers(0, 256, (60, side, side, 3), dtype=np.uint8)
    frame = loaded.predict(own.get(kind, images))
    assert len(frame) == (120 if kind == "texts" else 60)
    assert kind != "texts" or (loaded.encode(["oil"]) > 0).any()


def test_a_state_refuses_other_pretrained_weights(tmp_path):
    keys = run_keys(tmp_path, "images", " lora=2")
    folder, _ = simulate(small(tmp_path / "a", method="fedssa", **keys))
    state = sorted(folder.path.glob("state/*/*/"))[0]
    for file in (tmp_path / "vit").iterdir():
        file.unlink()
    vit(tmp_path / "vit", seed=9)
    with pytest.raises(UserError, match="not those that the state was trained on"):
        load_model(state)


def test_answers_of_a_frozen_network_are_the_ones_that_training_would_compute(tmp_path):
    keys = run_keys(tmp_path, "images", " frozen")
    losses = []
    for cached in (True, False):
        config = small(tmp_path / str(cached), method="standalone", **keys)
        client = make_client(config, 0, tmp_path / str(cached) / "s")
        type(client).caches_frozen = cached
        try:
            assert (client.examples("train").examples.dim() == 2) is cached
            losses.append(client.fit([], {"round": 1, "generation": 0, "evaluate": True})[2])
        finally:
            type(client).caches_frozen = True
    assert losses[0]["train_loss"] == pytest.approx(losses[1]["train_loss"], rel=1e-4)
    assert losses[0]["train_flops"] < losses[1]["train_flops"] / 10


@pytest.mark.parametrize("method", ANY)
def test_a_cnn_a_vit_and_berts_sibling_share_in_one_run(tmp_path, method):
    """All methods that share less than a whole network take any architectures."""
    models = ["cnn-5", f"hf:{vit(tmp_path / 'vit')} lora=2", f"hf:{beit(tmp_path / 'beit')} frozen"]
    keys = {**IMAGES, "models": models, "clients": 3, "rounds": 1, **short(method)}
    folder, _ = simulate(small(tmp_path, method=method, **keys))
    assert folder.read_rounds()[0]["replied"] == 3


ROWS = Inputs.table(("a", "b"))
NETWORK = "shufflenet_v2_x0_5"


def written(tmp_path, tensors):
    file = tmp_path / "own.safetensors"
    save_file({key: value.contiguous() for key, value in tensors.items()}, file)
    return file


def test_a_models_own_tensors_and_without_a_head_it_is_drawn_as_always(tmp_path):
    other = {key: value + 1 for key, value in built("mlp-5", ROWS).state_dict().items()}
    whole = built(f"mlp-5 weights={written(tmp_path, other)}", inputs=ROWS).state_dict()
    assert all(torch.equal(whole[key], other[key]) for key in whole)
    file = written(tmp_path, {k: v for k, v in other.items() if not k.startswith("head")})
    plain, model = (built(name, ROWS, 9) for name in ("mlp-5", f"mlp-5 weights={file}"))
    assert torch.equal(model.head.weight, plain.head.weight)
    assert torch.equal(model.layers[0].weight, other["layers.0.weight"])


def test_what_was_exported_starts_another_run_and_its_place_stays_at_home(tmp_path):
    keys = {"dataset": "synthetic:60x2", "image_size": 16, "clients": 1, "classes_per_client": 1,
            "rounds": 1, "lr": 1e-30, "momentum": 0.0}  # fmt: skip
    first, _ = simulate(small(tmp_path, method="fedmrl", name="first", **keys))
    file = export(next(first.path.glob("state/*/0")), tmp_path / "model") / "model.safetensors"
    again, _ = simulate(small(tmp_path, name="again", models=[f"cnn-5 weights={file}"], **keys))
    state = next(again.path.glob("state/*/0"))
    assert str(file) not in again.clients.read_text() + (state / "client.json").read_text()
    kept, started = (read_tensors(one, "pt")[0] for one in (file, next(state.glob("0*.saf*"))))
    assert torch.equal(started["model/conv1.weight"], kept["parts.model.conv1.weight"])


def test_a_librarys_network_sees_images_as_it_was_trained(tmp_path):
    """Grey ones in three channels, normalised by ImageNet's mean and deviation."""
    with torch_seeded(4, "test"):
        network = get_model(NETWORK, weights=None).eval()
    file = written(tmp_path, network.state_dict())
    network.fc = torch.nn.Identity()
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    for inputs in (Inputs.image(32), Inputs.image(32, grey=True)):
        model = built(f"{NETWORK} weights={file}", inputs=inputs).eval()
        x = torch.rand(2, *inputs.shape) * 2 - 1
        pixels = ((x + 1) / 2).expand(-1, 3, -1, -1)
        expected = torch.relu(model.projection(network((pixels - mean) / std)))
        assert torch.allclose(model.features(x), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda t: t.pop("layers.0.bias"), "lacks 'layers.0.bias'"),
        (lambda t: t.update(more=torch.ones(2)), "has 'more', which the model lacks"),
        (lambda t: t.update({"layers.0.bias": torch.ones(63)}),
         r"layers.0.bias: .*\[63\].*\[64\]"),
        (lambda t: t.update({"head.bias": torch.ones(4)}), "remove the head"),
        (lambda t: t["layers.1.bias"].fill_(torch.nan), "has 'layers.1.bias' .* not finite"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(tmp_path, spoil, says):
    tensors = built("mlp-5", inputs=ROWS).state_dict()
    spoil(tensors)
    file = written(tmp_path, tensors)
    with pytest.raises(UserError, match=f"model 'mlp-5': weights '{file}'.*{says}"):
        built(f"mlp-5 weights={file}", inputs=ROWS)


def test_a_node_reads_its_own_file_alone():
    for named in ("cnn-5 weights=/etc/own.safetensors", "hf:/data/vit frozen"):
        with pytest.raises(UserError, match="not allowed on a network"):
            check_no_weights(build_config({"models": named, "dataset": "synthetic"}))
    config = build_config({"models": "cnn-5 weights=/etc/own.safetensors"})
    zero, own = SimpleNamespace(index=0, client="0"), "cnn-4 weights=/data/a.safetensors"
    with pytest.raises(UserError, match="not allowed on a network"):
        assigned_model(config, {}, zero, simulated=False)
    assert assigned_model(config, {"model": own}, zero, simulated=False) == own
