"""Ray: the same bytes as everywhere, on 127.0.0.1, with nothing left."""

import psutil
from engines.commands import WORK, run, summary

from fedhet.config.load import load_config
from fedhet.engines.session import find_preset
from fedhet.testing import simulate


def test_a_run_on_ray_is_private_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = run(tmp_path, "run", "engine=ray", "rounds=3", "actors=1")
    command.wait_rounds(1)
    listening = {
        (one.name(), connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for one in command.look()
        if one.is_running()
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    code, _, err = command.end()
    assert code == 0, err
    assert {"gcs_server", "raylet"} <= {name for name, *_ in listening}
    assert {ip for _, ip, _ in listening} == {"127.0.0.1"}
    twin, _ = simulate(
        load_config(find_preset("quickstart"), [*WORK, "rounds=3", f"out={tmp_path}"])
    )
    assert summary(command.folder)["run_sha256"] == summary(twin.path)["run_sha256"]
    assert summary(command.folder)["failures"] == []
