"""Arrays of a checkpoint: an honest run's fit its method, others are named."""

import numpy as np
import pytest
from helpers.products import FIVE, short

from fedhet.cli.app import execute
from fedhet.config.registry import METHODS
from fedhet.engines import session
from fedhet.records.ledger import Checkpoint, load_checkpoint, save_checkpoint
from fedhet.testing import simulate, small

ALL = [
    m if m in FIVE else pytest.param(m, marks=pytest.mark.matrix) for m in METHODS if m != "hetlora"
]


@pytest.mark.parametrize("method", ALL)
def test_arrays_that_a_method_cannot_take_are_named(method, tmp_path, capfd):
    folder, _ = simulate(small(tmp_path, method=method, **short(method), rounds=1))
    kept = load_checkpoint(folder.checkpoint)
    assert kept is not None and not session.verify(folder.path)[1].findings
    for name, array in [*kept.arrays.items()][-2:]:
        other = array[:-1] if name in METHODS[method].strategy.growing else array.astype(np.float16)
        save_checkpoint(folder.checkpoint, Checkpoint(kept.arrays | {name: other}, kept.meta))
        for command in (["verify", str(folder.path)], ["resume", str(folder.path), "rounds=2"]):
            assert execute(command) in {2, 3}
        printed = capfd.readouterr()
        assert str(folder.checkpoint) in printed.out + printed.err
