"""The command line with a remote API server: TLS, client certificates, tokens, and exec plug-ins for tokens."""

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from serving.tools.cli.main import main

PODS = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [{"metadata": {"name": "p"}}]}

CREDENTIAL = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "fetched"},
}
PLUG_IN = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "echo",
    "args": [json.dumps(CREDENTIAL)],
    "interactiveMode": "Never",
}


class Server(ThreadingHTTPServer):
    """A server that records the path and the Authorization of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Authorization", "")))
        body = json.dumps(PODS).encode() if not self.path.endswith("/log") else b"line\n"
        self.send_response(200)
        self.send_header("Warning", '299 - "mind \\"this\\""')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Do nothing."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextlib.contextmanager
def serving_tls(authority: trustme.CA) -> Iterator[Server]:
    """A server that requires a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    with Server() as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def config(folder: Path, authority: trustme.CA, port: int, user: dict[str, object]) -> Path:
    def encoded(blob: trustme.Blob) -> str:
        return base64.b64encode(blob.bytes()).decode()

    client = authority.issue_cert("someone@example.com")
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": encoded(authority.cert_pem)}
    certificate = {
        "client-certificate-data": encoded(client.cert_chain_pems[0]),
        "client-key-data": encoded(client.private_key_pem),
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "far", "cluster": cluster}],
        "users": [{"name": "me", "user": {**certificate, **user}}],
        "contexts": [{"name": "work", "context": {"cluster": "far", "user": "me", "namespace": "team"}}],
        "current-context": "work",
    }
    path = folder / "config"
    path.write_text(json.dumps(content))
    return path


def serving(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], env={"KUBECONFIG": str(path)})


@pytest.mark.parametrize(
    ("user", "sent"), [({}, ""), ({"token": "secret"}, "Bearer secret"), ({"exec": PLUG_IN}, "Bearer fetched")]
)
def test_command_authenticates_as_its_kubeconfig_specifies(
    tmp_path: Path, authority: trustme.CA, user: dict[str, object], sent: str
) -> None:
    with serving_tls(authority) as server:
        done = serving(config(tmp_path, authority, server.server_port, user), "get", "pods", "-o", "name")
    # On a slow machine, the command also reports that it waits for the API.
    messages = [line for line in done.stderr.splitlines() if not line.startswith("waiting for the API")]
    assert (done.stdout, messages) == ("pod/p\n", ['warning: mind "this"'])
    assert server.requests == [("/api/v1/namespaces/team/pods", sent)]


def test_untrusted_server_is_rejected_with_one_line(tmp_path: Path, authority: trustme.CA) -> None:
    with serving_tls(trustme.CA()) as server:
        done = serving(config(tmp_path, authority, server.server_port, {}), "get", "pods")
    assert (done.exit_code, server.requests, len(done.stderr.splitlines())) == (1, [], 1)
    assert "certificate verify failed" in done.stderr
    assert f"{tmp_path}/config names it" in done.stderr
