"""TCP services: an MQTT broker (Debian's mosquitto) at zero until a client connects.

The broker listens at two ports; a message published at one is received at the other.

Takes about 8 s, because a whole system starts and ends.
"""

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.e2e.cli_stage import Stage, staged
from tests.eventually import until

BROKER = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/bin") or ""
PATIENCE_S = 60


def can_mount() -> bool:
    program = shutil.which("unshare")
    return (
        bool(program)
        and subprocess.run([str(program), "-rm", "true"], check=False, capture_output=True).returncode == 0
    )


def has_line(stage: Stage, line: str, *, name: str = "broker") -> str:
    """The output of describe for the service, if it has the line; otherwise ""."""
    page = stage("describe", name).output
    return page if line in page.splitlines() else ""


@contextlib.contextmanager
def reserved_port() -> Iterator[str]:
    """A port reserved by binding it here too."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", 0))
        yield str(sock.getsockname()[1])


@pytest.mark.skipif(not BROKER or not shutil.which("mosquitto_pub"), reason="needs mosquitto and mosquitto-clients")
def test_broker_at_zero_accepts_an_mqtt_client(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    with reserved_port() as port, reserved_port() as other, staged(tmp_path / "state", "--isolation=none") as stage:
        settings = "log_type none\\nallow_anonymous true\\nlistener %s 127.0.0.1\\nlistener %s 127.0.0.1\\n"
        command = f"printf '{settings}' $PORT $PORT_{other} > broker.conf; exec {BROKER} -c broker.conf"
        wrong = stage("deploy", "broker", str(folder), "--command", command, "--tcp", "mqtt", code=2)
        assert "a port from 1 to 65535" in wrong.output
        deployed = ("deploy", "broker", str(folder), "--command", command, "--initial-scale", "0", "--tcp")
        with socket.create_server(("127.0.0.1", 0)) as occupied:
            number = occupied.getsockname()[1]
            printed = stage(*deployed, str(number)).output
            assert f"TCP port {number} is unavailable: another program listens at port {number}" in printed
            page = asyncio.run(until(lambda: has_line(stage, f"TCP        {number} unavailable")))
            assert f"another program listens at port {number} of 127.0.0.1" in page
            assert "TcpUnavailable" in page
        assert "unavailable" not in stage(*deployed, port, "--tcp-port", other).output
        asyncio.run(until(lambda: has_line(stage, f"TCP        {port} listening")))
        asyncio.run(until(lambda: has_line(stage, f"           {other} listening")))
        at = ("-h", "127.0.0.1", "-t", "greetings")
        subprocess.run(["mosquitto_pub", *at, "-p", other, "-m", "hello", "-r"], check=True, timeout=PATIENCE_S)
        seen = subprocess.run(
            ["mosquitto_sub", *at, "-p", port, "-C", "1"],
            check=True,
            timeout=PATIENCE_S,
            capture_output=True,
            text=True,
        )
        assert seen.stdout == "hello\n"


@pytest.mark.slow
@pytest.mark.skipif(not BROKER or not shutil.which("mosquitto_pub"), reason="needs mosquitto and mosquitto-clients")
@pytest.mark.skipif(not can_mount(), reason="needs a mount namespace, in which the names of services have an address")
def test_two_brokers_share_a_tls_port(tmp_path: Path) -> None:
    """Takes about 5 s: two brokers start from zero, each for a client that names it."""
    (tmp_path / "hosts").write_text("".join(f"127.0.0.1 {name}.default.localhost\n" for name in ("one", "two")))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    with reserved_port() as port, staged(tmp_path / "state", "--isolation=none") as stage:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            leaf = authority.issue_cert(f"{name}.default.localhost")
            leaf.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
            leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
            settings = (
                "log_type none\\nallow_anonymous true\\nlistener %s 127.0.0.1\\ncertfile cert.pem\\nkeyfile key.pem\\n"
            )
            command = f"printf '{settings}' $PORT > broker.conf; exec {BROKER} -c broker.conf"
            stage("deploy", name, str(folder), "--command", command, "--initial-scale", "0", "--tcp", f"{port}/tls")
            asyncio.run(until(lambda: has_line(stage, f"TCP        {port} listening", name=name)))  # noqa: B023
        for name in ("one", "two"):
            message = ("-t", "greetings", "-m", f"from {name}", "-r")
            mqtt(tmp_path, "mosquitto_pub", f"{name}.default.localhost", port, *message)
        for name in ("two", "one"):
            seen = mqtt(tmp_path, "mosquitto_sub", f"{name}.default.localhost", port, "-t", "greetings", "-C", "1")
            assert seen == f"from {name}\n"


def mqtt(folder: Path, program: str, host: str, port: str, *arguments: str) -> str:
    """Run a client over TLS, with an /etc/hosts in which service names resolve to this machine."""
    script = f'mount --bind {folder}/hosts /etc/hosts && exec "$@"'
    command = [program, "-h", host, "-p", port, "--cafile", str(folder / "authority.pem"), *arguments]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *command],
        check=True,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
    )
    return done.stdout
