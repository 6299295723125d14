"""What docs/explanation/flower.md says of Flower's own mods, each around our ClientApp."""

import pytest
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)

from fedhet import client_app
from fedhet.protocol.flower import simulating
from fedhet.protocol.messages import TRAIN, arrays_of
from fedhet.testing import simulate, small


def answer(tmp_path, mod):
    """The answer to a train message through a mod, and the answer without."""
    _, grid = simulate(small(tmp_path, rounds=1))
    message = next(m for m in grid.sent if m.metadata.message_type == TRAIN)
    context = grid.contexts[message.metadata.dst_node_id]
    with simulating():
        return mod(message, context, client_app.app), client_app.app(message, context)


def test_a_payload_is_one_array_of_bytes(tmp_path):
    through, plain = answer(tmp_path, arrays_size_mod)
    (array,) = plain.content["arrays"].values()
    assert array.dtype == "uint8" and len(array.shape) == 1
    assert [a.tolist() for a in arrays_of(through)] == [a.tolist() for a in arrays_of(plain)]


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod])
def test_clipping_mods_answer_with_an_error(tmp_path, mod):
    assert "requires the key 'clipping_norm'" in answer(tmp_path, mod)[0].error.reason


def test_the_noise_of_local_dp_does_not_fit_into_bytes(tmp_path):
    with pytest.raises(TypeError, match="uint8"):
        answer(tmp_path, LocalDpMod(1.0, 1e-3, 1.0, 1e-5))


def test_flower_cannot_measure_an_empty_text(tmp_path):
    """That is the state's digest in round 1."""
    with pytest.raises(ValueError, match="Config values"):
        answer(tmp_path, message_size_mod)
