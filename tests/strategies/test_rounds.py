"""The round loop: determinism, faults, resume, evaluation of everybody, sampling."""

import csv
from types import SimpleNamespace

import pytest
import torch
from flwr.app import Error, Message, MetricRecord
from helpers.tiny import tiny

from fedhet.clients.base import MethodClient
from fedhet.errors import RunFailed
from fedhet.files import client_order
from fedhet.protocol.handshake import Roster
from fedhet.protocol.messages import instruction
from fedhet.records.run_folder import RunFolder
from fedhet.strategies import base
from fedhet.strategies.base import MethodStrategy
from fedhet.testing import LocalGrid, simulate


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """An undisturbed run and its grid, which tests read only."""
    return simulate(tiny(tmp_path_factory.mktemp("plain")))


def train_messages(grid, round_=None):
    """The train messages, of one round or all, in the order in which they were sent."""
    trained = [m for m in grid.sent if m.metadata.message_type == "train"]
    return [m for m in trained if round_ in (None, instruction(m).round)]


def test_same_config_same_bytes_whatever_the_order_of_replies(tmp_path, plain, monkeypatch):
    pull = LocalGrid.pull_messages
    monkeypatch.setattr(LocalGrid, "pull_messages", lambda self, ids: pull(self, list(ids)[::-1]))
    other, _ = simulate(tiny(tmp_path))
    assert other.read_summary()["run_sha256"] == plain[0].read_summary()["run_sha256"]


@pytest.mark.parametrize("why", ["Flower error 1: lost", "no reply"])
def test_a_repeated_message_changes_nothing(tmp_path, why):
    """The reply is lost, the client has saved generation 1, the server still names 0."""

    def lose(node, message, reply):
        if node == 0 and instruction(message).round == 1 and reply.content.array_records:
            error = Error(code=1, reason="lost")
            return Message(error, reply_to=message) if "lost" in why else None
        return reply

    folder, grid = simulate(tiny(tmp_path, rounds=2), tamper=lose)
    named = [instruction(m) for m in train_messages(grid) if m.metadata.dst_node_id == 100]
    assert [one.generation for one in named] == [0, 0]
    assert folder.read_summary()["failures"] == [{"round": 1, "client": "0", "reason": why}]


def test_too_few_replies_skip_the_round_then_fail_the_run(tmp_path):
    """In round 1 one valid reply comes, and is named as well; all come in round 2, then none."""

    def mute(node, message, reply):
        round_ = instruction(message).round
        if message.metadata.message_type == "train" and round_ != 2 and (round_, node) != (1, 1):
            return Message(Error(code=1, reason="mute"), reply_to=message)
        return reply

    config = tiny(tmp_path, rounds=9, min_replies=2, max_skipped_rounds=2, name="skips")
    with pytest.raises(RunFailed, match="3 rounds in a row.*mute"):
        simulate(config, tamper=mute)
    rounds = RunFolder(tmp_path / "runs" / "skips").read_rounds()
    assert [r["replied"] for r in rounds] == [0, 3, 0, 0, 0]
    assert [f["client"] for f in rounds[0]["failures"]] == ["0", "1", "2"]
    assert "1 of min-replies=2 came" in rounds[0]["failures"][1]["reason"]


def test_patience_ends_a_run_as_completed_and_says_so(tmp_path, caplog):
    config = tiny(tmp_path, method="standalone", rounds=9, patience=2, lr=1e-30, metric="auroc")
    with caplog.at_level("INFO", "fedhet"):
        folder, _ = simulate(config)
    assert [record["round"] for record in folder.read_rounds()] == [1, 2, 3]
    assert "2 evaluated rounds without a better validation AUROC" in caplog.text
    assert folder.read_summary()["status"] == "completed"


def test_denormal_numbers_are_zero_while_a_client_works(tmp_path, monkeypatch):
    least, found, original = torch.tensor([1e-39]), [], MethodClient.fit

    def fit(self, *arguments):
        found.append(float(least * 0.5))
        return original(self, *arguments)

    monkeypatch.setattr(MethodClient, "fit", fit)
    simulate(tiny(tmp_path, rounds=1))
    assert found == [0.0, 0.0, 0.0]
    assert float(least * 0.5) > 0


def test_an_offline_client_is_failed_at_once_and_not_replaced(tmp_path):
    def leave(node, message, reply):
        if instruction(message).round == 1:
            grid_of["x"].online.discard(102)
        return reply

    grid_of = {}
    folder, _ = simulate(tiny(tmp_path), tamper=leave, before=lambda g: grid_of.update(x=g))
    second = folder.read_rounds()[1]
    assert (second["sampled"], second["replied"], second["offline"]) == (3, 2, 1)
    assert second["failures"] == [{"client": "2", "reason": "offline"}]


def test_evaluate_every_evaluates_all_that_trained_since(tmp_path):
    config = tiny(tmp_path, fraction=0.34, rounds=4, evaluate_every=2, evaluate_all=False)
    folder, _ = simulate(config)
    rounds = folder.read_rounds()
    assert rounds[0]["test_accuracy_mean"] is None and rounds[1]["evaluated_clients"] <= 2
    rows = list(csv.DictReader(folder.clients.open()))
    assert {row["round"] for row in rows} == {"2", "4"}
    trained = {str(r): set() for r in range(1, 5)}
    for row in rows:
        trained[row["generation"]].add(row["client"])
    assert sum(len(clients) for clients in trained.values()) == len(rows) >= 2


def test_sampling_depends_on_seed_and_round_only():
    roster = Roster()
    roster.infos = dict.fromkeys(map(str, range(20)))  # type: ignore[assignment]
    drawn = roster.sample(1, 5, 4)
    assert drawn == roster.sample(1, 5, 4) and len(set(drawn)) == 4
    assert drawn != roster.sample(1, 6, 4) and drawn != roster.sample(2, 5, 4)
    assert sorted(["10", "9", "b", "a"], key=client_order) == ["9", "10", "a", "b"]
    assert sorted(["7", "07", "007"], key=client_order) == ["007", "07", "7"]
    assert sorted(["07", "007", "7"], key=client_order) == ["007", "07", "7"]


def test_a_client_that_returns_with_other_data_is_refused(tmp_path):
    def swap(node, message, reply):
        grid = grid_of["x"]
        if instruction(message).round == 1 and 102 in grid.online:
            grid.online.discard(102)
            grid.contexts[103] = grid.contexts[102]
            grid.contexts[103].node_config["model"] = "cnn-4"
            grid.online.add(103)
        return reply

    grid_of = {}
    folder, _ = simulate(tiny(tmp_path), tamper=swap, before=lambda g: grid_of.update(x=g))
    assert folder.read_rounds()[1]["failures"] == [
        {"client": "2", "reason": "offline"},
        {"client": "node 103", "reason": "client '2' declares other data or another model now"},
    ]


def test_a_run_in_which_nobody_ever_replied_fails_with_the_first_reason(tmp_path, monkeypatch):
    """The whole text of it: a simulation is one owner's, on one machine."""

    def fit(self, *arguments):
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(MethodClient, "fit", fit)
    here = r"\(test_rounds.py:\d+\)"
    with pytest.raises(RunFailed, match=f"client 0: ZeroDivisionError: by hand {here}$"):
        simulate(tiny(tmp_path, rounds=1))


# --- what is sent, in which order -----------------------------------------------------------------


SECONDS = {0: 1.0, 1: 9.0, 2: 4.0}


def slow(node, message, reply):
    if message.metadata.message_type == "train":
        numbers = dict(reply.content["metrics"].items())
        numbers["seconds"] = SECONDS[node] * numbers["num-examples"]
        reply.content["metrics"] = MetricRecord(numbers)
    return reply


def test_long_jobs_are_sent_longest_first_once_their_time_is_known(tmp_path):
    config = tiny(tmp_path, models=["cnn-3", "cnn-4", "cnn-5"], rounds=2)
    _, grid = simulate(config, tamper=slow)
    first, second = (
        [m.metadata.dst_node_id - 100 for m in train_messages(grid, r)] for r in (1, 2)
    )
    assert (first, second) == ([0, 1, 2], [1, 2, 0])


@pytest.mark.parametrize(("method", "records"), [("lg_fedavg", 1), ("fedssa", 3)])
def test_what_all_clients_get_is_encoded_once(tmp_path, method, records):
    _, grid = simulate(tiny(tmp_path, method=method, rounds=1))
    sent = [message.content["arrays"] for message in train_messages(grid, 1)]
    assert len(sent) == 3 and len({id(record) for record in sent}) == records


def test_a_simulation_waits_for_every_client_however_slow_and_many(tmp_path):
    """More clients than Flower's simulator is given at a time, and limits that each exceeds."""
    keys = {"clients": 70, "dataset": "synthetic:700x2", "rounds": 1, "classes_per_client": 1}
    limits = {"round_timeout": 1e-3, "start_timeout": 1e-3, "late": "next", "late_after": 1e-9}
    hurried, _ = simulate(tiny(tmp_path, **keys, **limits, min_replies=2, name="h"))
    patient, _ = simulate(tiny(tmp_path, **keys, name="p"))
    (record,) = hurried.read_rounds()
    assert record["replied"] == record["evaluated_clients"] == 70 and not record["failures"]
    assert record["sha256"] == patient.read_rounds()[0]["sha256"]


@pytest.mark.parametrize(("skipped", "least"), [(1, 5), (2, 10), (3, 20), (9, 60)])
def test_rounds_that_fail_at_once_are_spaced_and_say_so(monkeypatch, skipped, least):
    """A data file that is away for 14 seconds costs two rounds, not all of them."""
    slept, said = [], []
    clock = SimpleNamespace(monotonic=lambda: float(sum(slept)), sleep=slept.append)
    monkeypatch.setattr(base, "time", clock)
    strategy = SimpleNamespace(
        config=SimpleNamespace(round_timeout=3600.0), folder=SimpleNamespace(wait_for=said.append),
        roster=SimpleNamespace(ids=["a"], nodes={"a": 1}),
        handshake=SimpleNamespace(query=lambda patience: []),
    )  # fmt: skip
    MethodStrategy._wait_for_recovery(strategy, skipped)
    assert least <= sum(slept) <= least + 1 and said[-1] == "" and f"waiting {least} s" in said[0]
