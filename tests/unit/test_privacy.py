"""Noise on uploads, against Flower's own local DP mod and by hand."""

import json

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity
from simulation import simulate, small

from fedhet.errors import UserError
from fedhet.node.privacy import noise_source, privatise, sigma
from fedhet.protocol.payload import MaskedHeader

DP = {"dp_clip": 2.0, "dp_epsilon": 0.5, "dp_delta": 1e-5}


def arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)]


class Silent:
    """A generator whose noise is zero; keeps the scale that it was asked for."""

    def normal(self, mean, scale, shape):
        self.scale = scale
        return np.zeros(shape)


def flowers(received, upload, monkeypatch):
    """What LocalDpMod makes of it, and the scale of its noise."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    silent = Silent()
    monkeypatch.setattr(np.random, "normal", silent.normal)
    message = Message(RecordDict({"a": ArrayRecord(received)}), 5, "train")
    message.metadata.__dict__["_message_id"] = "x"
    reply = Message(RecordDict({"a": ArrayRecord(upload)}), reply_to=message)
    mod = LocalDpMod(DP["dp_clip"], DP["dp_clip"], DP["dp_epsilon"], DP["dp_delta"])
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}, series_id=0
    )
    noised = mod(message, context, lambda *_: reply)
    return noised.content.array_records["a"].to_numpy_ndarrays(), silent.scale


@pytest.mark.parametrize("size", [0.1, 10.0])
def test_clipping_and_scale_are_those_of_flowers_mod(tmp_path, monkeypatch, size):
    config = small(tmp_path, **DP)
    received = arrays(0)
    upload = [a + size * b for a, b in zip(received, arrays(1), strict=True)]
    expected, scale = flowers(received, upload, monkeypatch)
    silent = Silent()
    ours = privatise(upload, received, config, silent)
    assert silent.scale == pytest.approx(scale) == sigma(config)
    for mine, theirs in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    update = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(ours, received, strict=True)))
    assert update <= 2.0 + 1e-5


def test_integers_stay_and_other_classes_are_no_reference(tmp_path):
    config = small(tmp_path, **DP)
    ids, rows = np.array([1, 3]), np.full((2, 4), 5.0, np.float32)
    same = privatise([ids, rows], [ids, rows], config, Silent())
    np.testing.assert_array_equal(same[1], rows)  # no update, nothing to clip
    other = privatise([ids, rows], [np.array([1, 2]), rows], config, Silent())
    np.testing.assert_array_equal(other[0], ids)
    assert np.linalg.norm(other[1]) == pytest.approx(2.0)


def test_noise_has_the_right_scale_and_repeats_in_simulations_only(tmp_path):
    config = small(tmp_path, **DP)
    zeros = [np.zeros(100_000, np.float32)]

    def noise(simulated, round_=1):
        rng = noise_source(config, "0", round_, simulated=simulated)
        return privatise(zeros, zeros, config, rng)[0]

    assert noise(True).std() == pytest.approx(sigma(config), rel=0.02)
    assert noise(True).dtype == np.float32
    np.testing.assert_array_equal(noise(True), noise(True))
    assert (noise(True) != noise(True, 2)).any()
    # The server knows the seed: what is drawn from it could be subtracted.
    assert (noise(False) != noise(False)).any() and (noise(False) != noise(True)).any()


def test_rows_outside_the_mask_are_zero_again():
    mask = np.array([1, 0], np.int8)
    sealed = MaskedHeader(mask, np.ones((2, 3), np.float32), np.ones(2, np.float32)).sealed()
    assert sealed.weight.tolist() == [[1, 1, 1], [0, 0, 0]] and sealed.bias.tolist() == [1, 0]
    assert sealed.weight.dtype == np.float32


@pytest.mark.parametrize("hidden", [False, True])
def test_a_run_with_noise(tmp_path, hidden):
    mild = {"dp_clip": 1.0, "dp_epsilon": 50.0, "dp_delta": 1e-3}
    runs = [
        json.loads(simulate(small(tmp_path, hide_classes=hidden, **more))[0].summary.read_text())
        for more in (mild, mild, {})
    ]
    assert runs[0]["failures"] == []
    assert runs[0]["run_sha256"] == runs[1]["run_sha256"] != runs[2]["run_sha256"]


@pytest.mark.parametrize("missing", DP)
def test_the_three_keys_are_needed_together(tmp_path, missing):
    with pytest.raises(UserError, match=f"^{missing.replace('_', '-')}: .* needed together"):
        small(tmp_path, **{key: value for key, value in DP.items() if key != missing})
