"""What the base says to a method's hooks that do not fit, and what it keeps of their numbers."""

import json

import pytest
import torch
from torch import nn

from fedhet.clients.averaging import AveragingClient
from fedhet.clients.base import MethodClient
from fedhet.clients.standalone import StandaloneClient
from fedhet.config.load import build_config
from fedhet.config.registry import METHODS, Method
from fedhet.config.schema import Params
from fedhet.errors import Refused, RunFailed, UserError
from fedhet.strategies.averaging import AveragingStrategy
from fedhet.strategies.base import MethodStrategy
from fedhet.strategies.lg_fedavg import LGFedAvgStrategy
from fedhet.strategies.standalone import StandaloneStrategy
from fedhet.testing import check_method, make_client, simulate, small
from fedhet.training.loop import Phase

TINY = {"image_size": 16, "representation": 64}


@pytest.fixture
def own(monkeypatch):
    """Registers a method of these halves as ``own``."""

    def register(strategy=StandaloneStrategy, client=StandaloneClient, params=Params):
        monkeypatch.setitem(METHODS, "own", Method(strategy, client, "", params))
        return "own"

    return register


class Counting(StandaloneStrategy):
    metric_ranges = {"images": (0.0, 1e9)}


class HeaderOnly(StandaloneClient):
    def phases(self):
        return [Phase(self.loss, [(self.model.head, self.config.lr)], 1, name="header")]

    def extra_metrics(self):
        return {"images": float(len(self.examples("train")))}


class Spoiled(LGFedAvgStrategy):
    def combine(self, total, round_):
        self.tensors = tuple(tensor * float("nan") for tensor in self.tensors)
        return {}


def test_an_aggregate_that_is_not_finite_ends_the_run_at_the_server(tmp_path, own):
    method = own(Spoiled, METHODS["lg_fedavg"].client)
    with pytest.raises(RunFailed, match="round 1: array '.*' of the server holds NaN"):
        simulate(small(tmp_path, method=method))


class AllButTheHeader(StandaloneClient):
    def phases(self):
        return [Phase(self.loss, [(self.model, self.config.lr)], 1, frozen=[self.model.head])]


@pytest.mark.parametrize(("half", "header"), [(HeaderOnly, True), (AllButTheHeader, False)])
def test_a_part_of_a_model_is_trained_alone(tmp_path, own, half, header):
    client = make_client(small(tmp_path, method=own(Counting, half)), 0, tmp_path / "state")
    before = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    client.fit([], {"round": 1, "generation": 0, "evaluate": False})
    for name, tensor in client.model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (name.startswith("head") != header)


def test_a_methods_numbers_are_recorded(tmp_path, own):
    run, _ = simulate(small(tmp_path, method=own(Counting, HeaderOnly)))
    record, sizes = run.read_rounds()[0], []
    for line in (run.path / "partition.csv").read_text().splitlines()[1:]:
        sizes.append(sum(map(int, line.split(",")[1:])))
    assert record["images"] == pytest.approx(sum(n * n for n in sizes) / sum(sizes))
    assert record["train_loss_header"] > 0
    assert record["train_loss"] > 0  # else a sweep takes the run for diverged


class Idle(StandaloneClient):
    def build(self):
        return super().build() | {"extra": nn.Linear(2, 2)}

    def phases(self):
        groups = [(self.model, self.config.lr), (self.modules["extra"], self.config.lr)]
        return [Phase(self.loss, groups, 1)]


class Detached(StandaloneClient):
    def loss(self, inputs, labels):
        return super().loss(inputs, labels).detach()


class Deaf(AveragingClient):
    download_type = StandaloneClient.download_type

    def shared(self):
        return self.model.head


class NoShapes(StandaloneStrategy):
    upload_type = AveragingStrategy.upload_type


class HalfState(StandaloneStrategy):
    def arrays(self):
        return {}


@pytest.mark.parametrize(
    ("strategy", "client", "text"),
    [
        (StandaloneStrategy, Idle, r"group 1 \(Linear\).*`phases`"),
        (StandaloneStrategy, Detached, "no gradient.*`phases`"),
        (LGFedAvgStrategy, Deaf, "`download_type` of Deaf"),
        (NoShapes, StandaloneClient, "set `reference`"),
        (HalfState, StandaloneClient, "both `arrays` and `load`"),
    ],
)
def test_a_mistake_names_the_hook(tmp_path, own, strategy, client, text):
    sent = [torch.zeros(4, 500).numpy(), torch.zeros(4).numpy()] * (strategy is LGFedAvgStrategy)
    with pytest.raises((UserError, Refused), match=text):
        made = make_client(small(tmp_path, method=own(strategy, client)), 0, tmp_path / "state")
        made.fit(sent, {"round": 1, "generation": 0, "evaluate": False})


class Growing(LGFedAvgStrategy):
    """Has state that `arrays` does not have."""

    grown = 0

    def aggregate(self, uploads, round_):
        self.grown += 1
        super().aggregate(uploads, round_)
        self.tensors = tuple(tensor * (1 + self.grown) for tensor in self.tensors)
        return {}


def test_state_that_is_not_in_arrays_is_caught_by_the_contract(tmp_path, own):
    with pytest.raises(AssertionError, match="keeps in `arrays`"):
        check_method(own(Growing, METHODS["lg_fedavg"].client), tmp_path, **TINY)


class Clash(Params):
    lr: float = 0.1


def test_a_key_that_is_also_a_common_key_is_refused(own):
    with pytest.raises(UserError, match="its key 'lr' is a common key"):
        build_config({"method": own(params=Clash)})


def test_a_configuration_seen_before_sets_the_process_again(tmp_path):
    from fedhet import client_app

    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            text = json.dumps({"config": small(tmp_path, threads=count).flat(), "run": {}})
            client_app.set_process(client_app.parsed(text))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)


def test_what_is_nearly_a_hook_is_refused():
    def half(hook):
        return Method(MethodStrategy, type("Own", (MethodClient,), {hook: lambda self: []}), "own")

    with pytest.raises(UserError, match="Own: 'phase' is not a hook: did you mean 'phases'"):
        _ = half("phase").client
    assert half("_phase").client.__name__ == "Own"  # a helper of its own
