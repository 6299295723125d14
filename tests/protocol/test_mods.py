"""What docs/explanation/flower.md says of Flower's own mods, each around our ClientApp."""

import pytest
from flwr.clientapp import mod as mods
from helpers.tiny import tiny

from fedhet import client_app
from fedhet.protocol.flower import simulating
from fedhet.protocol.messages import TRAIN, arrays_of
from fedhet.testing import simulate


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    _, grid = simulate(tiny(tmp_path_factory.mktemp("mods"), rounds=1))
    message = next(m for m in grid.sent if m.metadata.message_type == TRAIN)
    return message, grid.contexts[message.metadata.dst_node_id]


def answer(asked, mod):
    with simulating():
        return mod(*asked, client_app.app)


def test_a_payload_is_one_array_of_bytes(asked):
    through = answer(asked, mods.arrays_size_mod)
    plain = answer(asked, lambda message, context, app: app(message, context))
    (array,) = plain.content["arrays"].values()
    assert array.dtype == "uint8" and len(array.shape) == 1
    assert [a.tolist() for a in arrays_of(through)] == [a.tolist() for a in arrays_of(plain)]


def test_other_mods_fail(asked):
    for mod in (mods.fixedclipping_mod, mods.adaptiveclipping_mod):
        assert "requires the key 'clipping_norm'" in answer(asked, mod).error.reason
    with pytest.raises(TypeError, match="serialization"):  # the payload is bytes
        answer(asked, mods.LocalDpMod(1.0, 1e-3, 1.0, 1e-5))
    with pytest.raises(ValueError, match="Config values"):  # an empty text: the digest in round 1
        answer(asked, mods.message_size_mod)
