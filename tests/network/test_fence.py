"""``docker/fence.conf``: a SuperNode works through nginx, and nothing but the Fleet API passes."""

import shutil
import ssl
import urllib.error
import urllib.request

import pytest
from network.federation import Federation

from fedhet.runtime.superlink import app_root, free_ports

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(NGINX is None, reason="nginx is missing"),
]


def test_clients_reach_the_fleet_api_and_nothing_else(tmp_path):
    federation = Federation(tmp_path, 1)
    (port,) = free_ports(1)
    text = (app_root() / "docker" / "fence.conf").read_text()
    for old, new in {
        "8443": f"127.0.0.1:{port}",
        "9443": str(federation.port),
        "/etc/fedhet/server.pem": str(federation.tls.certificate),
        "/etc/fedhet/server.key": str(federation.tls.key),
        "/etc/fedhet/ca.crt": str(federation.tls.ca),
    }.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text)
    words = [NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", "stderr", "-g",
             f"daemon off; pid {tmp_path}/nginx.pid;"]  # fmt: skip
    inside = federation.port
    try:
        federation.extra(words, "nginx")
        federation.start_superlink()
        key = f"{federation.tls.client('0')}.pub"
        federation.flwr("supernode", "register", key, "net", "--name", "0")
        federation.port = port  # for the node only: whoever submits runs is inside
        federation.start_node(0)
        federation.port = inside
        federation.wait_online(1)
        summary = federation.run("fenced", clients=1, rounds=1).result()
        assert summary["status"] == "completed" and summary["failures"] == []

        context = ssl.create_default_context(cafile=str(federation.tls.ca))
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/health", "/"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(
                    f"https://127.0.0.1:{port}{path}", data=b"", context=context, timeout=10
                )
    finally:
        federation.stop()
