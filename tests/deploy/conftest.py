"""A server over TLS on loopback that answers what a test wants."""

import http.server
import ssl
import threading

import pytest


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers with its server's status and body, or with what it was sent."""

    def do_POST(self):
        sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = sent if self.server.body is None else self.server.body
        self.send_response(self.server.status)
        told = {"content-length": len(body), "x-path": self.path,
                "x-signature": self.headers.get("signature", "")}  # fmt: skip
        for name, value in told.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def serve():
    """Start a server with a folder's certificate, or without TLS; ``where`` is its address."""
    servers = []

    def start(tls, host="127.0.0.1", status=404, body=b""):
        server = http.server.ThreadingHTTPServer((host, 0), Answer)
        server.status, server.body = status, body
        server.where = f"{host}:{server.server_port}"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
