"""``serving up --public --acme`` with Pebble, Let's Encrypt's test server (Debian's package pebble)."""

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_stage import SAMPLE, staged
from tests.integration.tls_stage import AUTHORITY

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("pebble") is None, reason="needs pebble"),
]

DOMAIN = "apps.example.com"
HOST, MAPPED = f"hello.default.{DOMAIN}", "shop.example.com"
MAPPING = f"""
apiVersion: serving.knative.dev/v1beta1
kind: DomainMapping
metadata: {{name: {MAPPED}}}
spec: {{ref: {{apiVersion: serving.knative.dev/v1, kind: Service, name: hello}}}}
"""


def free_ports(count: int) -> list[int]:
    """Currently free ports."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


@contextlib.contextmanager
def pebble(folder: Path, *, challenge_port: int) -> Iterator[int]:
    """Run Pebble with a DNS server that resolves all names to this machine; yields its port."""
    port, management, dns, names_management = free_ports(4)
    leaf = AUTHORITY.issue_cert("localhost")
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    AUTHORITY.cert_pem.write_to_path(folder / "ca.pem")
    addresses = {"listenAddress": f"127.0.0.1:{port}", "managementListenAddress": f"127.0.0.1:{management}"}
    files = {"certificate": str(folder / "cert.pem"), "privateKey": str(folder / "key.pem")}
    settings = {**addresses, **files, "httpPort": challenge_port, "tlsPort": 1}
    (folder / "pebble.json").write_text(json.dumps({"pebble": settings}))
    addresses_of = ["-dns01", f"127.0.0.1:{dns}", "-management", f"127.0.0.1:{names_management}", "-defaultIPv6", ""]
    unused = [word for name in ("http01", "https01", "tlsalpn01") for word in (f"-{name}", "")]
    commands = [
        ["pebble-challtestsrv", *addresses_of, *unused],
        ["pebble", "-config", str(folder / "pebble.json"), "-dnsserver", f"127.0.0.1:{dns}"],
    ]
    with (folder / "pebble.log").open("wb") as log, contextlib.ExitStack() as stack:
        for command in commands:
            environment = {"PEBBLE_VA_NOSLEEP": "1", "PATH": "/usr/bin"}
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
            stack.callback(process.terminate)
        yield port


def issuer_of(port: int, host: str) -> str:
    """The issuer of the certificate that is served for a host; "" while there is none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            served = connection.getpeercert(binary_form=True)
        assert served is not None
        return "Pebble" if b"Pebble Intermediate CA" in served else "another"
    return ""


def await_certificate(port: int, host: str) -> None:
    until_s = time.monotonic() + 120
    while issuer_of(port, host) != "Pebble":
        assert time.monotonic() < until_s
        time.sleep(0.1)


def test_claimed_hosts_get_certificates_from_pebble(tmp_path: Path) -> None:
    (public_port,) = free_ports(1)
    state = tmp_path / "state"
    with pebble(tmp_path, challenge_port=public_port) as port:
        directory = f"https://localhost:{port}/dir"
        options = (f"--public={DOMAIN}", f"--acme={directory}", f"--public-port={public_port}")
        with staged(state, *options, REQUESTS_CA_BUNDLE=str(tmp_path / "ca.pem")) as stage:
            stage("deploy", "hello", str(state), "--command", SAMPLE)
            tls_port = json.loads((state / "ports.json").read_text())["tls"]
            await_certificate(tls_port, HOST)
            (tmp_path / "mapping.yaml").write_text(MAPPING)
            stage("apply", "-f", str(tmp_path / "mapping.yaml"))
            await_certificate(tls_port, MAPPED)
            assert f"https://{HOST}:{tls_port}" in stage("url", "hello").stdout
            assert stage("invoke", "hello").stdout
            assert "2 of 2 with a certificate" in stage("status").stdout
            assert "CertificateIssued" in stage("describe", "hello").stdout
            pairs = sorted(path for path in (state / "acme").glob("*.pem"))
            assert [path.stem for path in pairs] == [HOST, MAPPED]
            assert {path.stat().st_mode & 0o777 for path in pairs} == {0o600}


def test_unreachable_acme_server_is_reported_and_services_respond(tmp_path: Path) -> None:
    with staged(tmp_path, f"--public={DOMAIN}", "--acme=https://localhost:1/dir") as stage:
        stage("deploy", "hello", str(tmp_path), "--command", SAMPLE)
        assert stage("invoke", "hello").stdout
        why = "https://localhost:1/dir: [Errno 111] Connection refused"
        until_s = time.monotonic() + 120
        while why not in stage("status").stdout:
            assert time.monotonic() < until_s
            time.sleep(0.1)
        findings = json.loads(stage("doctor", "-o", "json").stdout)
        assert f"{HOST}: {why}" in {finding["text"] for finding in findings if finding["state"] == "warn"}
        assert "IssuingFailed" in stage("describe", "hello").stdout
