"""FLOPs that a client says it spent, against the server's own count."""

from dataclasses import replace

import pytest

from fedhet.config.schema import RunConfig
from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.flop_count import counter
from fedhet.protocol.checks import Rejected
from fedhet.protocol.flop_claims import FACTOR, Work
from fedhet.protocol.identity import ClientInfo
from fedhet.protocol.payload import Empty

INFO = ClientInfo("0", ("a",), ("a",), (5,), 5, "cnn-5", "cpu")


def test_work_on_others_examples_does_not_grow_with_a_clients_own():
    work = Work(lambda info, payload, round_: (2.0, 300.0))
    work.check(INFO, FACTOR * 310, Empty, 1)
    with pytest.raises(Rejected, match="the server counts 310 for 5 images"):
        work.check(INFO, FACTOR * 310 + 1, Empty, 1)


def test_what_is_sent_later_may_mean_more_work_and_is_counted_once_a_round():
    """FedMD digests a consensus from round 2 on."""
    asked = []

    def count(info, payload, round_):
        asked.append((payload, round_))
        return 2.0, float(payload)

    work = Work(count)
    work.check(INFO, 10.0, lambda: 0, 1)
    work.check(INFO, FACTOR * 310, lambda: 300, 2)
    for _ in range(3):
        with pytest.raises(Rejected):
            work.check(INFO, FACTOR * 400, lambda: 300, 2)
    assert asked == [(0, 1), (300, 2)]


@pytest.mark.parametrize("model", ["regnet_y_128gf", "vit_h_14", "timm:vit_giant", "theirs:make"])
def test_nothing_large_is_built_on_a_nodes_word(model, monkeypatch):
    monkeypatch.setattr("fedhet.flop_count.new_client", lambda *_: pytest.fail("it is built"))
    count = counter(RunConfig(), ("a",), Inputs.image(32))
    with pytest.raises(UserError, match="on a node's word alone"):
        count(replace(INFO, model=model), Empty(), 1)
