"""Client ids bound to keys: a member that takes another's name is refused."""

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from helpers.tiny import tiny

from fedhet.config.load import envelope
from fedhet.config.schema import RunConfig
from fedhet.deploy.certs import make
from fedhet.engines.grid import SimulationGrid
from fedhet.protocol.flower import key_as_sent
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.messages import TRAIN, Instruction, request
from fedhet.testing import LocalGrid


@pytest.fixture
def keys(tmp_path):
    """Clients "0", "1" and "2" certified by `fedhet certs`; their public keys as Flower's PEM."""
    places = make(tmp_path / "tls", [], ["0", "1", "2"])
    pems = {
        name: key_as_sent(
            load_ssh_public_key(places.client(f"{name}.pub").read_bytes())  # type: ignore[arg-type]
        )
        for name in ("0", "1", "2")
    }
    return tmp_path / "tls" / "clients", pems


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Three nodes as on a network, of which the third answers as client 1."""
    grid = LocalGrid(envelope(tiny(tmp_path), {}), 3)
    grid.contexts[102].node_config["partition-id"] = 1
    monkeypatch.delattr(SimulationGrid, "pull_interval")
    return grid


def asked(grid, policy):
    """Who is admitted when the liar is asked first; reasons by node."""
    roster = Roster()
    handshake = Handshake(grid, "x", roster, RunConfig(client_keys=str(policy)))
    grid.online = {102}
    handshake.query(patience=60)
    grid.online = {100, 101, 102}
    handshake.query(patience=60)
    return roster.nodes, roster.refused


@pytest.mark.parametrize("policy", ["auto", "registered"])
def test_a_member_with_another_members_name_is_refused(grid, keys, policy):
    if policy == "auto":  # without keys the first is believed
        assert asked(grid, policy)[0] == asked(grid, "off")[0] == {"0": 100, "1": 102}
    grid.identities = {100 + k: (str(k), keys[1][str(k)]) for k in range(3)}
    nodes, refused = asked(grid, policy)
    assert nodes == {"0": 100, "1": 101}
    assert "this node's key is registered under the name" in refused[102]


def test_a_key_without_a_name_cannot_take_a_registered_one(grid, keys):
    grid.identities = {101: ("1", keys[1]["1"])}
    roster = Roster()
    Handshake(grid, "x", roster, RunConfig(client_keys="auto")).query(patience=60)
    assert roster.nodes == {"0": 100, "1": 101}
    assert "the name of another node's key" in roster.refused[102]
    nodes, refused = asked(grid, "registered")
    assert nodes == {"1": 101}
    assert "is not registered under a name" in refused[100] + refused[102]


def test_a_folder_of_keys_says_who_is_who(grid, keys):
    """Registered names do not matter then: whoever reaches the Control API could set them."""
    folder, pems = keys
    grid.identities = {100: ("x", pems["0"]), 101: ("", pems["1"]), 102: ("1", pems["2"])}
    nodes, refused = asked(grid, folder)
    assert nodes == {"0": 100, "1": 101}
    assert refused == {102: "client id '1' belongs to another key than this node's"}
    (folder / "0.pub").unlink()
    nodes, refused = asked(grid, folder)
    assert nodes == {"1": 101} and "there is no 0.pub" in refused[100]
    grid.identities[101] = ("1", b"no key")
    assert asked(grid, folder)[0] == {}


def test_the_content_of_a_message_cannot_be_guessed():
    """Its id is the hash of it, and whoever knows the id may answer in the addressee's name."""
    made = [request(TRAIN, 7, Instruction("x"), 60).content.object_id for _ in range(2)]
    assert made[0] != made[1]
