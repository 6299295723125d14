"""A liar among honest clients: it is left out and named, and nobody else is, in any method."""

import json

import numpy as np
import pytest
from flwr.app import Error, Message

from benchmarks.liar import LIAR, farther, of_norm
from fedhet.config.registry import METHODS
from fedhet.protocol.messages import TRAIN, arrays_of, instruction, to_record
from fedhet.records.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate, small

CLIENTS = LIAR + 2
TINY = {
    "clients": CLIENTS, "dataset": "synthetic:160x4", "image_size": 16, "classes_per_client": 3,
    "models": ["cnn-4", "cnn-5"],
}  # fmt: skip


def silent(node, message, reply):
    """Client 3 never answers."""
    if node == LIAR and message.metadata.message_type == TRAIN:
        return Message(Error(code=1, reason="silent"), reply_to=message)
    return reply


def liar(change, rounds=None):
    """Client 3 uploads what ``change(arrays, sent, round)`` makes of its honest arrays."""

    def tamper(node, message, reply):
        if node == LIAR and message.metadata.message_type == TRAIN:
            round_, arrays = instruction(message).round, arrays_of(reply)
            if arrays and (rounds is None or round_ in rounds):
                content = reply.content
                content["arrays"] = to_record(change(arrays, arrays_of(message), round_))
                return Message(content, reply_to=message)
        return reply

    return tamper


def norm_9999(arrays, sent, round_):
    return of_norm(arrays, 9_999.0)


def one_value(arrays, sent, round_):
    """All of the norm in one value."""
    largest = max((a for a in arrays if a.dtype.kind == "f"), key=lambda a: a.size)
    new = [np.zeros_like(a) if a is largest else a for a in arrays]
    next(n for n, a in zip(new, arrays, strict=True) if a is largest).flat[0] = 9_999.0
    return new


def lines(folder):
    return [(r["round"], r["replied"], r["sha256"]) for r in folder.read_rounds()]


def failures(folder):
    return json.loads(folder.summary.read_text())["failures"]


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"standalone"}))
def test_an_upload_of_norm_9999_has_no_effect_in_any_method(tmp_path, method):
    """Every round is, to the bit, one in which the liar never answered."""
    values = {"method": method, "rounds": 2, **TINY}
    without, _ = simulate(small(tmp_path, **values, name="without"), tamper=silent)
    lied, _ = simulate(small(tmp_path, **values, name="lied"), tamper=liar(norm_9999))
    assert lines(lied) == lines(without)
    assert [r["replied"] for r in lied.read_rounds()] == [CLIENTS - 1] * 2
    assert [f["client"] for f in failures(lied)] == [str(LIAR)] * 2
    known = "max-update-ratio=10|max-update-norm=10000|not a probability|a gradient of norm"
    assert all(any(k in f["reason"] for k in known.split("|")) for f in failures(lied))


@pytest.mark.parametrize("method", ["fedssa", "fedmrl", "fedproto"])
def test_a_norm_in_one_value_is_no_different(tmp_path, method):
    values = {"method": method, "rounds": 1, **TINY}
    without, _ = simulate(small(tmp_path, **values, name="without"), tamper=silent)
    lied, _ = simulate(small(tmp_path, **values, name="lied"), tamper=liar(one_value))
    assert lines(lied) == lines(without)


def test_a_liar_is_taken_again_once_it_is_honest(tmp_path):
    folder, _ = simulate(small(tmp_path, rounds=2, **TINY), tamper=liar(norm_9999, {1}))
    assert [r["replied"] for r in folder.read_rounds()] == [CLIENTS - 1, CLIENTS]


def test_a_liar_alone_is_held_against_what_it_was_sent(tmp_path):
    """One client a round: in the first one nobody else can tell what is usual."""
    config = small(tmp_path, method="lg_fedavg", rounds=2, fraction=0.2, **TINY)
    folder, _ = simulate(config, tamper=lambda n, m, r: liar(norm_9999, {1})(LIAR, m, r))
    (failure,) = failures(folder)
    assert failure["round"] == 1 and "max-update-ratio" in failure["reason"]
    assert [r["replied"] for r in folder.read_rounds()] == [0, 1]


def test_a_deployed_liar_is_left_out_as_a_simulated_one(tmp_path):
    values = {"rounds": 2, **TINY}
    near, _ = simulate(small(tmp_path, **values, name="near"), tamper=liar(norm_9999))
    config = small(tmp_path, **values, name="far")
    # A deployed node's states lie under its own folder, not under the run's.
    far, _ = simulate(config, tamper=liar(norm_9999), before=own_folders(tmp_path), simulated=False)
    assert lines(near) == lines(far) and failures(near) == failures(far)


def own_folders(tmp_path):
    def before(grid):
        for context in grid.contexts.values():
            context.node_config["state-dir"] = str(tmp_path / "nodes")

    return before


def growing(arrays, sent, round_):
    return farther(arrays, sent, 9.0**round_)


def test_a_resumed_run_leaves_the_same_replies_out(tmp_path):
    """A step of 9 counts, one of 81 does not, whether or not the run was interrupted."""
    values = {"method": "fedproto", "max_update_ratio": 5.0, "rounds": 4, **TINY}
    whole, _ = simulate(small(tmp_path, **values, name="whole"), tamper=liar(growing))
    folder = RunFolder.create(small(tmp_path, **values), "cut")
    crash = 3

    def die(node, message, reply):
        if message.metadata.message_type == TRAIN and instruction(message).round == crash:
            raise KeyboardInterrupt
        return liar(growing)(node, message, reply)

    with pytest.raises(KeyboardInterrupt):
        simulate(small(tmp_path, **values), tamper=die, folder=folder)
    kept = load_checkpoint(folder.checkpoint)
    assert kept is not None and len(kept.meta["steps"]["medians"]) == 2
    resumed, _ = simulate(small(tmp_path, **values), tamper=liar(growing), folder=folder)
    assert lines(resumed) == lines(whole) and failures(resumed) == failures(whole)
    assert [r["replied"] for r in whole.read_rounds()] == [CLIENTS, *[CLIENTS - 1] * 3]


def test_a_checkpoint_from_before_there_was_a_ratio_is_resumed(tmp_path):
    values = {"rounds": 3, **TINY}
    whole, _ = simulate(small(tmp_path, **values, name="whole"))
    folder, _ = simulate(small(tmp_path, **values | {"rounds": 2}, name="old"))
    kept = load_checkpoint(folder.checkpoint)
    assert kept is not None
    old = {key: value for key, value in kept.meta.items() if key != "steps"}
    save_checkpoint(folder.checkpoint, Checkpoint(kept.arrays, old))
    resumed, _ = simulate(small(tmp_path, **values, name="old"), folder=folder)
    assert lines(resumed) == lines(whole)


def test_who_fails_because_of_anothers_upload_is_named_with_the_cause(tmp_path):
    """Without a ratio the lie counts: what the honest ones then fail of is not theirs."""
    config = small(tmp_path, method="fedavg", max_update_ratio=0, batch_size=4, **TINY)
    folder, _ = simulate(config, tamper=liar(norm_9999, {1}))
    reasons = [f["reason"] for f in failures(folder) if f["client"] != str(LIAR)]
    assert reasons and all("it was sent arrays" in reason for reason in reasons)
    assert all("times as large as usual)" in reason for reason in reasons)
