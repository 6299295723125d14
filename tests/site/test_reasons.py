"""What goes up when a client fails: a code and a number; the node's own log has the rest."""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from flwr.app import Message
from helpers.pictures import image_folder
from helpers.tiny import deployed, tiny
from hostile.deployed import Deployed

from fedhet.clients.fedssa import FedSSAClient
from fedhet.config.schema import kebab
from fedhet.errors import RunFailed
from fedhet.files import read_tensors
from fedhet.protocol.messages import instruction
from fedhet.records.run_folder import RunFolder
from fedhet.site.state import FileStore
from fedhet.testing import simulate

CLASSES = ("adder", "boa", "cobra")
SECRET = "zebra"


class Fault(NamedTuple):
    """What goes wrong at a site: before the run, or once round 1 is over."""

    word: str
    log: str
    before: Callable = lambda place, node: None
    after: Callable = lambda place, node: None


def _strange_class(place, node):
    (place / "images" / SECRET).mkdir()
    (place / "images" / "boa" / "001.png").rename(place / "images" / SECRET / "1.png")


def _damaged_state(place, node):
    for path in (place / "states").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-9])


def _set(text="", **values):
    """Give a node these keys; a file with this text lies at `place`/file."""

    def before(place, node):
        (place / "file").write_text(text)
        node.update({kebab(k): str(v).replace("PLACE", str(place)) for k, v in values.items()})

    return before


FAULTS = {
    "no images": Fault("data", "images~ is not", _set(data_dir="/nowhere/zebra/images~ is not")),
    "a class of its own": Fault("data", "zebra", _strange_class),
    "states cannot be written": Fault(
        "state", "Not a directory", _set(state_dir="PLACE/file/states")),
    "a damaged state": Fault("state-lost", "cannot be read", after=_damaged_state),
    "garbled limits": Fault("limits-file", "max-epoch", _set("max-epoch: 3", limits="PLACE/file")),
    "a limit": Fault("limit", "max-epochs", _set("max-epochs: 1", limits="PLACE/file")),
    "no such device": Fault("device", "cuda:7", _set(device="cuda:7")),
    "no such model": Fault("model", "zebra_nets", _set(model="zebra_nets:make")),
    "a bug": Fault("unexpected", "Traceback"),
}  # fmt: skip


HONEST = 3


def test_only_a_word_and_a_number_go_up(tmp_path, capfd, monkeypatch):
    sent: dict[int, list[Message]] = {k: [] for k in range(len(FAULTS))}
    places, nodes = {}, {}
    for k, (name, fault) in enumerate([*FAULTS.items(), *[("", Fault("", ""))] * HONEST]):
        places[k] = tmp_path / f"hospital-of-zebra-{k}"
        nodes[k] = {
            "data-dir": str(image_folder(places[k] / "images", CLASSES[:2], 10)),
            "name": name.replace(" ", "-") or f"b{k}",
            "state-dir": str(places[k] / "states"),
        }  # fmt: skip
        fault.before(places[k], nodes[k])

    def listen(number, message, reply):
        if number in sent:
            sent[number].append(reply)
        elif instruction(message).round == 1:  # an honest one's: who comes before has trained
            for k, fault in enumerate(FAULTS.values()):
                fault.after(places[k], nodes[k])
        return reply

    original = FedSSAClient.receive

    def receive(self, payload):
        if self.setup.data.client == "a-bug":
            raise ZeroDivisionError(f"zebra in {tmp_path}")
        original(self, payload)

    monkeypatch.setattr(FedSSAClient, "receive", receive)
    config = tiny(
        tmp_path, clients=len(nodes), secure_sum="masked", sum_min=2, classes=list(CLASSES),
        start_timeout=1.0, local_epochs=2, image_size=16, rounds=2,
    )  # fmt: skip
    folder, _ = simulate(config, before=deployed(tmp_path, nodes), tamper=listen, simulated=False)
    log = capfd.readouterr().err
    told = {f["reason"] for record in folder.read_rounds() for f in record["failures"]}
    for (name, fault), replies in zip(FAULTS.items(), sent.values(), strict=True):
        failed = [r.content.config_records["info"] for r in replies if "error" in r.content["info"]]
        assert failed and {str(info["error"]) for info in failed} == {fault.word}, name
        for reply in replies:
            records = [dict(record) for k, record in reply.content.items() if k != "arrays"]
            up = repr([{k: v for k, v in one.items() if k != "sum-key" and type(v) is not bytes}
                       for one in records])  # fmt: skip
            for word in (SECRET, str(tmp_path), "/", "Error", ".py", "hospital"):
                assert word not in up, (word, up)
        for info in failed:
            (line,) = re.findall(rf"fedhet: failed \(no\. {info['log']}\): (.*)", log)
            assert 10 < len(line) <= 500 and (fault.log in line or name == "a bug"), line
        assert any(r.startswith(f"{fault.word} (its log: no. ") for r in told), name
    assert log.count("Traceback") == 1  # the bug's, which is shown once


def test_a_state_that_is_not_finite_is_never_the_newest(tmp_path, capfd):
    config = tiny(tmp_path, method="standalone", lr=1e30, rounds=2, max_skipped_rounds=5)
    with pytest.raises(RunFailed, match="'model/.*' is not finite after round 1: "):
        simulate(config)
    (run,) = (tmp_path / "runs").iterdir()
    for record in RunFolder(run).read_rounds():
        assert record["replied"] == 0
        assert [f["client"] for f in record["failures"]] == ["0", "1", "2"]
    assert not list((run / "state").rglob("*.safetensors"))
    assert "Traceback" not in capfd.readouterr().err


def test_generations_that_a_client_goes_back_to(tmp_path):
    client = Deployed(tmp_path, "fedssa")
    store = FileStore(next(client.folder.glob("*/0")), sync=False)
    digests = {g: read_tensors(store.path(g), "pt")[1]["digest"] for g in store.generations()}
    assert sorted(digests) == [1, 2]

    def ask(round_, generation, state):
        content = client.instruction(round=round_, generation=generation, digest=state)
        return client.ask(content).content["info"]

    assert client.refusal(client.instruction(generation=0, digest="")) == "generation"
    third = ask(3, 1, digests[1])["digest"]  # a rollback to what it still keeps
    assert store.generations() == [1, 3] and store.generations(".aside") == [2]
    again = ask(3, 2, digests[2])["digest"]  # and forward again: nothing was lost
    assert again == client.reply.content["info"]["digest"] != third
    assert store.load(3, str(again)) and store.load(2, digests[2])
    assert store.generations() == [2, 3] and store.generations(".aside") == [3]
    assert ask(3, 3, again)["error"] == "instruction"
