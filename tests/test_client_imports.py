"""What a deployed client's process imports: DESIGN's "no server inside a hospital's process"."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Answers a query and a train message as a SuperNode's process does, then lists what it imported.
SCRIPT = """
import json, sys
from flwr.app import Context, RecordDict
from fedhet import client_app
from fedhet.protocol.flower import be_one_process, posted
from fedhet.protocol.messages import QUERY, TRAIN, Instruction, read_reply, request, to_record

method, state_dir = sys.argv[1:]
be_one_process()
values = {"method": method, "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
          "local-epochs": 1, "rounds": 1}
context = Context(
    run_id=1, node_id=1, state=RecordDict(), series_id=0,
    node_config={"partition-id": 0, "num-partitions": 3, "state-dir": state_dir},
    run_config={"config": json.dumps({"config": values, "run": {}})},
)

def ask(kind, what, arrays=None):
    message = request(kind, 1, what, 60.0, arrays)
    posted(message)
    reply = read_reply(client_app.app(message, context), 1 << 30)
    assert not reply.error, reply.error
    return reply

info = ask(QUERY, Instruction("x")).info
sent = []
if method == "fedssa":
    import numpy as np
    own = np.array([list(info["classes"]).index(name) for name in info["seen"]])
    sent = [own, np.zeros((len(own), 500), np.float32), np.zeros(len(own), np.float32)]
reply = ask(TRAIN, Instruction("x", 1, classes=tuple(info["classes"])), to_record(sent))
assert reply.metrics["test_accuracy"] >= 0
print(json.dumps(sorted(sys.modules)))
"""
SERVER = {
    "fedhet.strategies.rounds", "fedhet.server_app", "fedhet.protocol.handshake",
    "fedhet.protocol.delivery",
}  # fmt: skip
HEAVY = {"ray", "matplotlib", "sklearn", "scipy", "onnx", "pandas", "fastapi"}


@pytest.mark.parametrize("method", ["standalone", "fedssa"])
def test_a_deployed_client_imports_its_own_method_and_no_server(tmp_path, method):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, method, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded & (SERVER | HEAVY) == set()
    rooms = {".".join(name.split(".")[:2]) for name in loaded}
    assert rooms & {"fedhet.records", "fedhet.cli", "fedhet.engines", "fedhet.export"} == set()
    methods = {name for name in loaded if name.startswith(("fedhet.strategies", "fedhet.clients"))}
    shared = {f"fedhet.strategies{part}" for part in ("", ".base", ".averaging", ".robust")}
    shared |= {"fedhet.clients", "fedhet.clients.base", "fedhet.clients.kept"}
    assert methods <= shared | {f"fedhet.strategies.{method}", f"fedhet.clients.{method}"}
    assert f"fedhet.clients.{method}" in methods
