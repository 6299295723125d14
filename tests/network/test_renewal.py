"""Certificates that are renewed, or of another CA, while server, nodes and a masked run go on."""

import shutil

import pytest
from helpers.programs import wait_for
from network.federation import Federation

pytestmark = pytest.mark.network
SUMS = {"method": "lg_fedavg", "secure_sum": "masked", "rounds": 100}


def test_a_renewal_is_taken_up_and_a_new_ca_is_waited_for(tmp_path):
    """Node 2 has a CA's certificate of its own, as each site has."""
    federation = Federation(tmp_path, 3)
    (tmp_path / "own").mkdir()
    own = shutil.copy(tmp_path / "tls" / "ca.crt", tmp_path / "own" / "ca.crt")
    try:
        nodes = federation.whole({2: ("--partition", "2/3", "--ca", str(own))}).nodes
        run = federation.run("renewed", **SUMS)
        run.wait_rounds(1)
        assert federation.do("certs", "--out", "tls", "--renew").returncode == 0
        for process in (federation.server, *nodes.values()):
            wait_for(lambda p=process: p.said("was renewed: it is valid until"), "it is taken up")
        last = len(run.rounds())
        run.wait_for_round(lambda line: line["round"] > last + 1 and line["replied"] == 3)
        assert [line for line in run.rounds() if line["replied"] < 3] == []
        assert run.interrupt() == 130
        run = federation.resume(run)  # by keys that are proved anew
        last = len(run.rounds())
        run.wait_for_round(lambda line: line["round"] > last and line["replied"] == 3)
        assert run.interrupt() == 130

        federation.server.end()
        done = federation.do("certs", "--out", "other", "--server", "127.0.0.2")
        assert done.returncode == 0
        for name in ("ca.crt", "server.pem", "server.key"):
            shutil.copy(tmp_path / "other" / name, tmp_path / "tls" / name)
        federation.start_server()
        wait_for(lambda: nodes[2].said("it must be from the CA in"), "it says what it waits for")
        admitted = nodes[2].said("admitted by")
        shutil.copy(tmp_path / "other" / "ca.crt", own)
        wait_for(lambda: nodes[2].said("admitted by") > admitted, "it is let in again")
    finally:
        federation.stop()
