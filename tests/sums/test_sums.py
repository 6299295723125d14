"""What clients add up to is what the plain path makes of the same uploads."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.products import AVERAGED

from fedhet.config.load import build_config
from fedhet.config.registry import METHODS
from fedhet.errors import UserError
from fedhet.strategies.averaging import AveragingStrategy, class_totals
from fedhet.strategies.rules import ROBUST
from fedhet.sums.contribution import UNIT, Own, sum_unit
from fedhet.testing import make_strategy, small, uploads_of

SEEN, IMAGES, CLASSES = [[0, 1], [1, 2], [1, 2]], [100, 300, 50], 4  # nobody has class 3
BY_CLASS = ("fedssa", "fedproto")
SOME = ("fedssa", "fedproto", "fedmrl")  # one for each mechanism; the others by mark
VARIANTS = [
    *(pytest.param(name, {}, marks=[] if name in SOME else pytest.mark.matrix)
      for name in (*BY_CLASS, *AVERAGED)),
    ("fedssa", {"upload_rows": "whole", "download_rows": "whole"}),
    ("fml", {"weighting": "uniform"}),
]  # fmt: skip


def pair(tmp_path, method, owners=1, **changes):
    values = {"method": method, "max_images": 300, "representation": 8, **changes}
    values |= {"d1": 4} if method == "fedmrl" else {}
    summed = {"secure_sum": "masked", "sum_owners": owners}
    configs = small(tmp_path, **values), small(tmp_path, **values, **summed)
    return [make_strategy(config, SEEN, IMAGES, CLASSES) for config in configs]


def drawn(strategy, seed=0):
    """An upload of every client: random numbers in the shapes that are expected."""
    random, payloads = np.random.default_rng(seed), {}
    for client, info in strategy.roster.infos.items():
        expected = strategy.reference(info).payload
        drawn = (random.random(a.shape).astype(a.dtype) if a.dtype.kind == "f" else a
                 for a in expected.to_ndarrays())  # fmt: skip
        payloads[client] = type(expected).from_ndarrays([*drawn])
    return payloads


def own(strategy, client, told=None):
    info = strategy.roster.infos[client]
    return Own(strategy.config, CLASSES, info.seen, info.images, told)


def vectors(strategy, payloads, told=None):
    return {c: strategy.contribution(p, own(strategy, c, told)).flat for c, p in payloads.items()}


@pytest.mark.parametrize(("method", "changes"), VARIANTS, ids=str)
def test_the_sum_gives_what_the_plain_path_gives(tmp_path, method, changes):
    plain, summed = pair(tmp_path, method, **changes)
    payloads = drawn(plain)
    before = summed.arrays()
    added = vectors(summed, payloads)
    for vector in added.values():
        assert vector.dtype == np.float64 and vector.shape == next(iter(added.values())).shape
    numbers = summed.combine(np.sum(list(added.values()), axis=0), 1)
    uploads = uploads_of(plain, payloads)
    if changes.get("weighting") == "uniform":
        uploads = [replace(upload, weight=1 / 3) for upload in uploads]
    assert numbers.items() >= plain.aggregate(uploads, 1).items()
    for name, array in plain.arrays().items():
        assert array.dtype == summed.arrays()[name].dtype
        if name != "counts" or not changes:  # uniform: owners stand in for images
            np.testing.assert_allclose(summed.arrays()[name], array, rtol=1e-6, atol=1e-12)
    assert any((before[name] != array).any() for name, array in summed.arrays().items())
    zeros = (a * 0 if a.dtype.kind == "f" else a for a in payloads["1"].to_ndarrays())
    empty = summed.contribution(type(payloads["1"]).from_ndarrays([*zeros]), own(summed, "1"))
    assert not empty.values.any() and empty.counts.any()  # no noise would cover these


@pytest.mark.parametrize(("method", "changes"), [
    ("lg_fedavg", {}), ("fedmrl", {}), ("fedssa", {}),
    ("fedssa", {"upload_rows": "whole", "download_rows": "whole"}),
])  # fmt: skip
def test_with_noise_steps_from_what_was_sent_are_summed(tmp_path, method, changes):
    noise = {"dp_clip": 1.0, "dp_epsilon": 1.0, "dp_delta": 1e-5}
    _, without = pair(tmp_path, method, **changes)
    plain, steps = pair(tmp_path, method, **changes, **noise)
    payloads = drawn(plain)
    sent = steps.download(steps.roster.infos["0"], 1)
    moved = {client: payload.since(sent) for client, payload in payloads.items()}
    without.combine(sum(vectors(without, payloads).values()), 1)
    steps.combine(sum(vectors(steps, moved).values()), 1)  # what noise and clip would be put on
    for name, array in without.arrays().items():
        np.testing.assert_allclose(steps.arrays()[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", BY_CLASS)
def test_rows_of_a_class_with_few_owners_are_zeros_and_stay(tmp_path, method):
    """Also where the sum finds too few of them, since one has dropped out."""
    plain, summed = pair(tmp_path, method, owners=3)
    start = vectors(summed, drawn(plain, 5))
    summed.combine(sum(start.values()) * 3, 1)  # something of every class but the last is there
    before = {name: array.copy() for name, array in summed.arrays().items()}
    told = vectors(summed, drawn(plain), told=frozenset({1}))
    weighted = method == "fedproto"
    parts = [class_totals(summed, v, weighted=weighted) for v in told.values()]
    for part in parts:
        assert not part.rows[[0, 2, 3]].any() and not part.owners[[0, 2, 3]].any()
        assert part.rows[1].any() and part.owners[1] == 1
    two, every = told["0"] + told["1"], sum(told.values())
    for vector, stay, short in ((two, [0, 1, 2, 3], 1), (every, [0, 2, 3], 0)):
        summed.combine(vector, 2)
        assert summed.short_classes == short
        for name, array in summed.arrays().items():
            assert (array[stay] == before[name][stay]).all()
            if not short and name not in {"counts", "owners"}:
                assert (array[1] != before[name][1]).any()


def test_every_method_is_summed_or_says_why_not():
    refused = {"fd", "fedl2g", "fedkd", "fedgen", "fedgh", "fedtgp", "fedorgp", "hetlora"}
    for name, method in METHODS.items():
        assert bool(method.strategy.not_summed) == (name in refused)
        values = {"method": name, "secure-sum": "masked", "clients": 3}
        if name in refused:
            with pytest.raises(UserError, match=f"^secure-sum: .*method={name}: .* use "):
                build_config(values)
        else:
            assert build_config(values).summed


def test_who_has_more_than_the_unit_weighs_one_and_keeps_the_shares_of_its_classes():
    one = Own(build_config({"max-images": 256}), CLASSES, (0, 1), (300, 100))
    assert sum_unit(one.config) == 256 and sum_unit(build_config({})) == UNIT
    assert one.weight == 1.0 and one.weigh(np.array([300, 100])).tolist() == [0.75, 0.25]


@pytest.mark.parametrize(("key", "value", "lacks"), [
    ("secure-sum", "masked", "no `combine`"), ("aggregation", "median", "set `aggregations`"),
])  # fmt: skip
def test_an_aggregate_of_its_own_inherits_neither_sums_nor_medians(key, value, lacks):
    own = {"aggregate": lambda self, uploads, round_: {}}
    whole = own | {"aggregations": ROBUST, "combine": AveragingStrategy.combine}
    alone = type("Alone", (AveragingStrategy,), own)
    config = build_config({"method": "lg_fedavg", "clients": 3, key: value})
    for strategy in (AveragingStrategy, type("Whole", (alone,), whole)):
        strategy.check_hooks(config)
    with pytest.raises(UserError, match=f"^{key}: '{value}' .*Alone has .*{lacks}"):
        alone.check_hooks(config)
