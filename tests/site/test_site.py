"""What a client has on its device, and what nodes bring that own a file each."""

import csv
from io import StringIO

import pandas as pd
import pytest
import torch
from helpers.tiny import deployed

from fedhet.site.local_data import examples_of, load_local
from fedhet.testing import simulate, small

CLASSES = ("well", "ill")


def test_another_run_in_the_same_process_gets_its_own_images(tmp_path) -> None:
    """On a device that images are copied to once: the second partition is not the first one's."""
    device, sizes = torch.device("meta"), []
    for seed in (0, 1, 0):
        config = small(tmp_path, seed=seed, partition="dirichlet", alpha=0.5)
        data = load_local(config, {"partition-id": 0, "num-partitions": 3}, simulated=True)
        found = examples_of(data, "train", data.dataset.classes, device)
        assert len(found) == len(data.split.train)
        assert examples_of(data, "train", data.dataset.classes, device) is found
        sizes.append(len(found))
    assert sizes[0] == sizes[2] != sizes[1]


def test_nodes_bring_a_csv_each_in_any_order_and_who_lacks_a_column_is_refused(tmp_path) -> None:
    rows = [f"{40 + k},{'' if k % 7 else 2.5},{'fm'[k % 2]},{k % 2}" for k in range(140)]
    frame = pd.read_csv(StringIO("\n".join(["age,ca,sex,num", *rows])))
    columns = (["age", "ca", "sex", "num"], ["num", "sex", "ca", "age"], ["ca", "sex", "num"])
    for k, names in enumerate(columns):
        frame[names][:: 1 - 2 * (k == 1)].to_csv(tmp_path / f"{k}.csv", index=False)

    own = {k: {"data-dir": str(tmp_path / f"{k}.csv"), "name": f"h{k}"} for k in range(3)}
    config = small(
        tmp_path, dataset="table", target="num", labels={"well": [0], "ill": [1]}, clients=3,
        categories={"sex": ["f", "m"]}, models=["mlp-5"], start_timeout=1, representation=16,
    )  # fmt: skip
    run, _ = simulate(config, before=deployed(tmp_path, own), simulated=False)
    assert {row["client"] for row in csv.DictReader(run.clients.open())} == {"h0", "h1"}
    reasons = [failure["reason"] for failure in run.read_summary()["failures"]]
    assert any("columns are without age, which this run has" in reason for reason in reasons)
    assert run.read_rounds()[-1]["replied"] == 2
    masked = config.model_copy(update={"secure_sum": "masked", "sum_min": 2, "classes": CLASSES})
    run, _ = simulate(masked, before=deployed(tmp_path, own), simulated=False)
    mean = run.read_rounds()[-1]["test_accuracy_mean"]
    assert 2 * mean == pytest.approx(round(2 * mean))  # of 14 test rows each, in whole percents
    assert run.partition.read_text().splitlines()[1:] == ["h0,,", "h1,,"]
