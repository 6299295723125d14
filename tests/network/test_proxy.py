"""A whole node behind a proxy, and what everybody says who waits."""

import pytest
from helpers.programs import ConnectProxy, wait_for
from network.federation import HOST, Federation

pytestmark = pytest.mark.network


def answered(federation: Federation, k: int, since: int) -> bool:
    return federation.nodes[k].said("round 1: test accuracy") > since


@pytest.fixture
def proxied(federation):
    """Node 2 started with `https_proxy`, and the proxy."""
    proxy = ConnectProxy()
    proxy.allow(HOST)
    federation.whole().nodes[2].end()
    before = federation.env
    federation.env = before | {"https_proxy": f"http://me:secret@127.0.0.1:{proxy.port}"}
    node, times = federation.start_node(2)
    federation.env = before
    wait_for(lambda: node.said("admitted by") > times, "it is let in through the proxy")
    yield federation, proxy, node
    proxy.stop()
    node.end()


def test_a_node_takes_part_through_a_proxy_and_says_when_it_cannot(proxied):
    federation, proxy, node = proxied
    where = f"{HOST}:{federation.port}"
    assert f"CONNECT {where}" in proxy.log() and "/v1/" not in proxy.log()
    env = federation.env | {"https_proxy": f"http://127.0.0.1:{proxy.port}"}
    words = (*federation.node_words(2, ("--partition", "2/3", "--state", "other")), "--check")
    check = federation.do(*words, env=env)
    says = f"through the proxy 127.0.0.1:{proxy.port} of https_proxy"
    assert f"{where} over TLS {says}" in check.stdout, check.stdout
    direct = federation.do(*words).stdout
    assert f"{where} over TLS" in direct and "through the" not in direct
    summary = federation.run("proxied", rounds=1).result()
    assert summary["failures"] == [] and answered(federation, 2, 0)

    proxy.allow()  # nobody: 403
    wait_for(lambda: node.said(f"{says}: it answers 403"), "the refusal is told")
    assert not node.said("secret")
    refused = federation.do(*words, env=env)
    assert refused.returncode == 2 and "answers 403" in refused.stdout
    proxy.stop()
    wait_for(lambda: node.said(f"{says}: [Errno 111]"), "so is that there is no proxy")
    proxy.allow(HOST)
    run = federation.run("again", rounds=1)
    assert run.result()["failures"] == [] and answered(federation, 2, 1)


def test_status_and_run_say_that_the_server_does_not_answer(federation):
    """A SuperLink that hangs takes connections and answers nothing."""
    link = federation.whole().server.child("flower-superlink")
    link.suspend()
    try:
        status = federation.start("status", "status", "--superlink", "tls")
        run = federation.run("hangs", rounds=1)
        for process, what in ((status, "the server of 'tls'"), (run.process, "'tls'")):
            wait_for(lambda p=process, w=what: p.said(f"waiting for {w} since"), "it is told")
            assert process.said("no answer yet") == 1
    finally:
        link.resume()
    run.result()
