"""The presets of signals, tables and texts run as they are, and with models of one's own."""

import pytest
from test_same_bytes import signals, table, texts

from fedhet.cli.app import execute
from fedhet.config.load import build_config, load_config
from fedhet.engines import session
from fedhet.site.local_data import load_partition
from fedhet.testing import simulate


def test_the_preset_of_signals_runs_as_it_is(examples, tmp_path):
    """Those of tables and texts run below, with models of one's own."""
    own = [
        f"data-path={signals(tmp_path)['data_path']}",
        "rounds=1",
        f"out={tmp_path}",
        "engine=inline",
    ]
    own += ["site=subject", "partition=natural", "clients=0"]
    preset = examples.parent / "configs" / "kinds" / "signals.yaml"
    config = session.resolve_clients(load_config(preset, own))
    assert config.clients == 3
    session.check_simulation(config)
    (record,) = simulate(config)[0].read_rounds()
    assert record["replied"] == 3 and not record["failures"]


@pytest.mark.parametrize(
    ("factories", "kind"),
    [(["own_rows:deep", "own_rows:wide"], table), (["own_words:make"], texts)],
)
def test_models_of_ones_own_as_a_user_runs_them(here, examples, tmp_path, capsys, factories, kind):
    """In the folder of the module, with the command that stands in it; beside one of ours too."""
    module, preset = factories[0].partition(":")[0], kind.__name__
    command = f"fedhet run kinds/{preset} data-path=FILE.csv models={','.join(factories)}"
    assert command in (examples / f"{module}.py").read_text()
    words = command.replace("FILE.csv", kind(tmp_path)["data_path"]).split()[1:]
    quick = ["rounds=1", "engine=inline", "representation=24", f"out={tmp_path}"]
    quick += ["clients=2", "local-epochs=1"] + ["target=num"] * (preset == "table")
    assert execute([*words, "name=own", *quick]) == 0, capsys.readouterr().err
    rows = [line.split(",") for line in (tmp_path / "own/clients.csv").read_text().splitlines()]
    assert {row[2] for row in rows[1:]} == set(factories)
    ours = {"table": "mlp-5", "texts": "textcnn"}[preset]
    mixed = [*words[:-1], f"models={factories[0]},{ours}", "method=fedavg", f"small-model={ours}"]
    assert execute([*mixed, "name=mixed", *quick]) == 0, capsys.readouterr().err


OWN = {"partition": "natural", "rounds": 3, "engine": "inline", "lr": 0.05, "representation": 32}


@pytest.mark.parametrize(
    ("module", "models", "clients"),
    [("own_table", ["@table-5"], 3), ("own_signals", ["conv1d-5", "conv1d-4"], 6)],
)
def test_what_data_of_ones_own_invent_can_be_learned(here, tmp_path, module, models, clients):
    """By the commands of docs/how-to/own-model.md."""
    values = {"dataset": f"{module}:load", "models": models, "out": str(tmp_path)}
    config = session.resolve_clients(build_config(OWN | values))
    assert config.clients == clients
    assert simulate(config)[0].read_rounds()[-1]["test_accuracy_mean"] > 60


def test_a_table_of_ones_own(here, tmp_path):
    (tmp_path / "own.csv").write_text(
        "clinic,age,pressure,smokes,outcome\n" + "x,50,,once,ill\ny,40,120,never,well\n" * 9
    )
    config = build_config(
        OWN | {"dataset": "own_table:load", "data-path": str(tmp_path / "own.csv")}
    )
    assert load_partition(config, 0)[1].ids == ("x", "y")
