"""All that leaves a site: the list of docs/explanation/privacy.md, and nothing of its rows."""

import numpy as np
import pytest
from helpers.tiny import deployed, tiny
from safetensors.numpy import load_file

from fedhet.config.registry import METHODS
from fedhet.engines.system import QUIET, environment
from fedhet.protocol.messages import arrays_of
from fedhet.testing import simulate

ROWS = 60
REPLY = {"client", "round"}
JOINS = {"client", "clients", "classes", "model", "device", "inputs"}
SCORES = {"accuracy", "balanced_accuracy", "macro_f1", "auroc", "log_loss", "ece"}
METRICS = {f"{part}_{name}" for part in ("val", "test") for name in (*SCORES, "majority_accuracy")}
METRICS |= {"num-examples", "train_loss", "train_flops", "seconds"}
LEAVES = {  # records of a reply by the kind of its message
    "off": {
        "query": JOINS | {"seen", "images", "train-images"}, "train": REPLY | {"digest"},
        "evaluate.confusion": REPLY | {"confusion"},
    },
    "masked": {
        "query": JOINS | {"sum-key"}, "query.introduce": {"client", "strangers"},
        "train.owners": REPLY, "train": REPLY | {"digest"}, "evaluate.confusion": REPLY,
        "train.unmask": REPLY | {"shares", "seeds", "closed"},
    },
}  # fmt: skip


@pytest.mark.parametrize("sums", LEAVES)
def test_no_row_no_path_and_no_median_leaves_a_site_only_what_the_list_names(tmp_path, sums):
    """Ages and doses are odd numbers that nothing else would have."""
    rng, own = np.random.default_rng(1), {}
    ages, doses = rng.uniform(2e4, 9e4, (3, ROWS)).round(3), rng.uniform(1e5, 9e5, (3, ROWS))
    for k in range(3):
        path = tmp_path / f"at-hospital-{k}" / "secret-name.csv"
        path.parent.mkdir()
        rows = (f"{ages[k, n]},{doses[k, n]},{n % 2}" for n in range(ROWS))
        path.write_text("\n".join(["age,dose,ill", *rows]) + "\n")
        own[k] = {"data-dir": str(path), "name": f"h{k}"}
    config = tiny(
        tmp_path, dataset="table", target="ill", classes=["0", "1"], models=["mlp-5"],
        secure_sum=sums, rounds=1, representation=16,
    )  # fmt: skip
    sent, kinds = [], {}

    def listen(number, message, reply):
        sent.append(reply)
        info, kind = set(reply.content.config_records["info"]), message.metadata.message_type
        kinds[kind] = info | kinds.get(kind, set())
        return reply

    folder, _ = simulate(config, before=deployed(tmp_path, own), tamper=listen, simulated=False)
    assert folder.read_rounds()[0]["replied"] == 3 and kinds == LEAVES[sums]
    numbers = {n for r in sent for record in r.content.metric_records.values() for n in record}
    assert numbers == (METRICS if sums == "off" else set())
    said = repr([r.content.config_records for r in sent]) + repr(sent)
    for word in ("secret-name", "at-hospital", str(tmp_path)):
        assert word not in said
    values = np.concatenate([ages, doses, np.median(ages, 1, keepdims=True),
                             np.median(doses, 1, keepdims=True)], axis=None)  # fmt: skip
    arrays = [array for reply in sent for array in arrays_of(reply)]
    raw = b"\0".join([array.tobytes() for array in arrays] + [said.encode()])
    for value in values.tolist():
        forms = (np.float64(value).tobytes(), np.float32(value).tobytes(), f"{value:.3f}".encode())
        assert not any(form in raw for form in forms), value


def test_programs_send_nothing_to_flowers_makers(monkeypatch):
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "1")
        assert environment()[name] == "0" == QUIET[name]  # of programs, and of processes of ours


@pytest.mark.parametrize("method", [name for name in METHODS if name != "hetlora"])  # adapters
def test_of_a_sites_own_model_at_most_the_last_layer_leaves(tmp_path, method):
    sent = []

    def listen(number, message, reply):
        sent.extend(array.tobytes() for array in arrays_of(reply))
        return reply

    needed = {"d1": 16} if method == "fedmrl" else {}  # a part of the representation
    simulate(tiny(tmp_path, rounds=1, method=method, **needed), tamper=listen)
    states = [load_file(path) for path in tmp_path.rglob("00000001.safetensors")]
    tensors = [(k, v.tobytes()) for state in states for k, v in state.items() if v.size > 8]
    own = [(name, value) for name, value in tensors if name.startswith("model/")]
    assert len(states) == 3 and own
    left = {name for name, value in own if value in sent}
    assert left == dict(own).keys() if method == "fedavg" else left <= {"model/head.weight"}
