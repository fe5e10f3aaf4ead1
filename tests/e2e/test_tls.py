"""``serving up`` with certificates: clients over TLS, a renewal at run time, and errors of invalid certificates."""

import json
import ssl
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from serving.tools.cli.main import main
from tests.e2e.cli_stage import SAMPLE, staged
from tests.integration.tls_stage import client_context, issued, write_pair

pytestmark = pytest.mark.timeout(300)

HOST = "hello.default.localhost"


def seen_hosts(port: int) -> list[str]:
    """The host names in the certificate of a new connection."""
    with httpx.Client(http2=True, verify=client_context(), trust_env=False, timeout=60) as client:
        response = client.get(f"https://127.0.0.1:{port}/", headers={"Host": HOST}, extensions={"sni_hostname": HOST})
        assert (response.status_code, response.http_version) == (200, "HTTP/2")
        stream: ssl.SSLObject = response.extensions["network_stream"].get_extra_info("ssl_object")
        names = dict(stream.getpeercert() or {})["subjectAltName"]
        return [str(name[1]) for name in names]


def served_over_tls(port: int) -> None:
    """Send requests until the activator knows the service, shortly after it is ready."""
    until_s = time.monotonic() + 60
    with httpx.Client(verify=client_context(), trust_env=False, timeout=60) as client:
        while client.get(
            f"https://127.0.0.1:{port}/", headers={"Host": HOST}, extensions={"sni_hostname": HOST}
        ).is_error:
            assert time.monotonic() < until_s
            time.sleep(0.05)


def test_service_is_served_over_tls_and_its_certificate_reloaded(tmp_path: Path) -> None:
    certificate, key, state = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "state"
    write_pair(certificate, key, "*.default.localhost")
    options = (f"--tls-cert={certificate}", f"--tls-key={key}")
    environment = {
        "SERVING_ACTIVATOR_HTTP_PROTOCOL": "Redirected",
        "SERVING_ACTIVATOR_TLS_RELOAD_PERIOD_S": "0.1",
    }
    with staged(state, *options, **environment) as stage:
        stage("deploy", "hello", str(state), "--command", SAMPLE)
        served_over_tls(json.loads((state / "ports.json").read_text())["tls"])
        ports = json.loads((state / "ports.json").read_text())
        assert seen_hosts(ports["tls"]) == ["*.default.localhost"]
        document = json.loads(stage("doctor", "-o", "json").stdout)
        assert [entry["state"] for entry in document if entry["name"] == "port tls"] == ["ok"]
        plain = httpx.get(f"http://127.0.0.1:{ports['public']}/x", headers={"Host": HOST}, trust_env=False, timeout=60)
        assert plain.status_code == 301
        assert plain.headers["location"] == f"https://{HOST}:{ports['tls']}/x"
        write_pair(certificate, key, "*.default.localhost", "new.example")
        until_s = time.monotonic() + 60
        while "new.example" not in seen_hosts(ports["tls"]):
            assert time.monotonic() < until_s
            time.sleep(0.05)


def test_invalid_certificates_are_reported_before_start(tmp_path: Path) -> None:
    pair, two = issued("a.localhost"), issued("b.localhost")
    (tmp_path / "c.pem").write_bytes(pair.certificate_pem)
    (tmp_path / "k.pem").write_bytes(two.key_pem)
    state = tmp_path / "state"

    def error_of(*options: str) -> str:
        done = CliRunner().invoke(main, ["up", f"--state={state}", *options])
        assert done.exit_code == 2
        return done.stderr

    certificate, key = f"--tls-cert={tmp_path}/c.pem", f"--tls-key={tmp_path}/k.pem"
    assert "1 of --tls-cert and 0 of --tls-key; expected one key for each certificate" in error_of(certificate)
    assert "c.pem with" in error_of(certificate, key)
    assert "the key is not this certificate's; expected a certificate with its key" in error_of(certificate, key)
    assert "nowhere.pem: No such file or directory" in error_of(certificate, f"--tls-key={tmp_path}/nowhere.pem")
    assert not state.exists()
