"""All models by name keep the contract; a user's factory is checked."""

import copy
import sys
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.export.model import export
from fedhet.models import build_model, model_sizes
from fedhet.models.networks import exchanged
from fedhet.plugins import giving
from fedhet.testing import cut_and_resume, simulate, small


def test_published_backbone_sizes() -> None:
    # torchvision's documented parameters at 1000 classes, less its FC, plus projection and head
    # (GoogLeNet's documented 6,624,904 has no auxiliary heads).
    documented = {
        "resnet18": (11_689_512, 512), "mobilenet_v2": (3_504_872, 1280),
        "googlenet": (6_624_904, 1024), "shufflenet_v2_x1_0": (2_278_604, 1024),
    }  # fmt: skip
    for row in model_sizes(list(documented), 10, 500, Inputs.image(32)):
        total, width = documented[row["name"]]
        ours = total - (width + 1) * 1000 + (width + 1) * 500 + 501 * 10
        assert row["parameters"] == ours, row["name"]


class Good(nn.Module):
    def __init__(self, classes, d, image_size):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(4, d),
        )  # fmt: skip
        self.head = nn.Linear(d, classes)

    def features(self, x):
        return self.body(x)


class WithForward(Good):
    def forward(self, x):
        return self.head(self.features(x))


def tied(classes, d, image_size):
    model = Good(classes, d, image_size)
    model.twin = model.body[4]
    model.again = model.body[0].weight
    return model


class Raises(Good):
    def features(self, x):
        raise ValueError("two\nlines")


def but(change):
    """A factory of models that are changed."""

    def factory(classes, d, image_size):
        model = Good(classes, d, image_size)
        change(model, model.body)
        return model

    return factory


MISTAKES = {
    "other_forward": (but(lambda m, body: setattr(m, "forward", lambda x: 2 * m.head(body(x)))),
                      r"forward\(x\) must equal head\(features\(x\)\)"),
    "wrong_width": (but(lambda m, body: setattr(m, "features", lambda x: body(x)[:, 1:])),
                    r"float32 of shape \(2, 5\), must be float32 of shape \(2, 6\)"),
    "not_tensor": (but(lambda m, body: setattr(m, "features", lambda x: [body(x)])),
                   "is list, must be"),
    "raises": (Raises, "fails: ValueError: two lines"),
    "no_features": (but(lambda m, _: setattr(m, "features", None)), "has no features"),
    "no_head": (but(lambda m, _: delattr(m, "head")), "head is NoneType, must be"),
    "wrong_head": (but(lambda m, _: setattr(m, "head", nn.Linear(6, 5))),
                   r"head is Linear\(6, 5\), must be Linear\(6, 4\)"),
    "no_bias": (but(lambda m, _: setattr(m, "head", nn.Linear(6, 4, bias=False))), "without bias"),
    "nothing": (lambda **_: None, "got a NoneType, must be a torch.nn.Module"),
    "fails": (lambda **_: 1 / 0, "fails: ZeroDivisionError"),
    "evaluating": (but(lambda m, _: m.eval()), "is in evaluation mode"),
    "constant": (3, "is a int, must be a factory"),
    "missing": (None, "'missing' does not exist"),
}  # fmt: skip


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module with factories of models."""
    module = ModuleType("fedhet_test_mine")
    vars(module).update(Good=Good, WithForward=WithForward, tied=tied)
    vars(module).update({name: made for name, (made, _) in MISTAKES.items() if made})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.mark.parametrize("factory", ["Good", "WithForward"])
def test_a_users_factory(mine: str, factory: str) -> None:
    model = build_model(f"{mine}:{factory}", classes=4, d=6, inputs=Inputs.image(20))
    assert torch.equal(model.body[1].running_var, torch.ones(4)), "the check left BatchNorm alone"
    x = torch.randn(3, 3, 20, 20)
    assert model(x).shape == (3, 4)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.head.weight.zero_()
        twin.head.bias.zero_()
    assert not twin(x).any(), "a copy's forward uses the copy's head"
    assert model(x).any()


@pytest.mark.parametrize("factory", MISTAKES)
def test_a_users_mistakes(mine: str, factory: str) -> None:
    with pytest.raises(UserError, match=MISTAKES[factory][1]) as error:
        build_model(f"{mine}:{factory}", classes=4, d=6, inputs=Inputs.image(20))
    assert f"{mine}:{factory}" in str(error.value)
    assert "\n" not in str(error.value)


def test_tied_weights_stay_tied_in_sums_a_resumed_run_and_an_export(mine: str, tmp_path) -> None:
    keys = {
        "method": "fedavg", "small_model": f"{mine}:tied", "secure_sum": "masked",
        "image_size": 20, "models": [f"{mine}:tied"], "dataset": "synthetic:60x4",
    }  # fmt: skip
    folder, _ = simulate(small(tmp_path, **keys))
    cut = cut_and_resume(small(tmp_path, **keys), 2)
    assert cut.read_rounds()[-1]["sha256"] == folder.read_rounds()[-1]["sha256"]
    export(next(folder.path.glob("state/*/0")), tmp_path / "model", trust=True)
    kept = load_file(tmp_path / "model" / "model.safetensors")
    weights = [kept[f"parts.model.{name}.weight"] for name in ("body.4", "twin")]
    assert torch.equal(*weights)
    names = exchanged(build_model(f"{mine}:tied", classes=4, d=6, inputs=Inputs.image(20)))
    assert "body.4.weight" in names and "twin.weight" not in names, "sent once"


def test_an_embedding_that_is_too_small_for_the_words_is_a_line_when_it_is_built() -> None:
    def words(classes):
        layers = nn.Embedding(100, 8), nn.Flatten(), nn.Linear(32, classes)
        return nn.Sequential(*layers)

    inputs = Inputs("tokens", (4,), vocabulary=101)
    with giving({"m:words:0123456789abcdef": words}), pytest.raises(UserError, match="up to 100 f"):
        build_model("m:words:0123456789abcdef", classes=2, d=32, inputs=inputs)


BROKEN = {"fedhet_test_broken": "import does_not_exist_anywhere",
          "fedhet_test_exits": "raise SystemExit(1)", "fedhet_test_absent": None}  # fmt: skip


@pytest.mark.parametrize("module", BROKEN)
def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch, module: str) -> None:
    if BROKEN[module]:
        (tmp_path / f"{module}.py").write_text(BROKEN[module])
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=f"cannot import '{module}'.*installed"):
        build_model(f"{module}:make", classes=4)
