"""Hospitals that sum masked uploads, of which one is lost before its upload arrives."""

import pytest
from helpers.pace import round_timeout
from helpers.programs import wait_for
from network.federation import Federation, simulated_hash

pytestmark = pytest.mark.network
SUMS = {"method": "lg_fedavg", "local_epochs": 20, "rounds": 100, "secure_sum": "masked"}


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_node_killed_before_its_upload_is_left_out_of_the_sum(tmp_path, nodes):
    """Two of three are fewer than `sum-min`: no sum. Four of five sign who is left, and sum."""
    federation = Federation(tmp_path, nodes)
    try:
        federation.whole()
        run = federation.run("masked", **SUMS, clients=nodes, round_timeout=round_timeout(nodes))
        run.wait_rounds(1)
        victim = nodes - 1
        run.catch(federation, victim, pause=0.1)
        last = len(run.rounds()) + 1
        federation.nodes[victim].kill()
        run.wait_rounds(last)
        if nodes == 3:  # no sum without it: a run that is resumed waits, and loses no round
            assert run.interrupt() == 130
            before, run = len(run.rounds()), federation.resume(run)
            wait_for(lambda: run.process.said("2 of 3 have come (without 2)"), "it waits")
            federation.start_node(victim)
            run.wait_rounds(before + 2)
            assert all(line["replied"] == nodes for line in run.rounds()[before:])
        assert run.interrupt() == 130
    finally:
        federation.stop()
    found = run.rounds()[last - 1]
    failed = {failure["client"] for failure in found["failures"]}
    lost = {(last, str(victim))}
    if nodes == 3:
        assert (found["replied"], failed) == (0, {"2", "the round"})
        return
    assert (found["replied"], failed) == (nodes - 1, {str(victim)})
    # A simulation has no certificates, so nobody signs: it names how many may be left.
    twin = SUMS | {"secure_sum": "masked", "rounds": last, "clients": nodes, "sum_threshold": 4}
    assert found["sha256"] == simulated_hash(tmp_path, lost, **twin)
