"""TCP as a user has it: an MQTT broker that is at zero until a client connects. Both are Debian's mosquitto.

The broker listens at two ports: a message that is left at one is found at the other.

Takes about 8 s: a whole system starts and ends.
"""

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_stage import Stage, staged
from tests.eventually import until

BROKER = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/bin") or ""
PATIENCE_S = 60


def has_line(stage: Stage, line: str) -> str:
    """The page of the service, if it has the line."""
    page = stage("describe", "broker").output
    return page if line in page.splitlines() else ""


@contextlib.contextmanager
def kept_port() -> Iterator[str]:
    """A port that no other program gets: it is bound here too."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        yield str(kept.getsockname()[1])


@pytest.mark.skipif(not BROKER or not shutil.which("mosquitto_pub"), reason="needs mosquitto and mosquitto-clients")
def test_a_broker_at_zero_takes_an_mqtt_client(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    with kept_port() as port, kept_port() as other, staged(tmp_path / "state", "--isolation=none") as stage:
        settings = "log_type none\\nallow_anonymous true\\nlistener %s 127.0.0.1\\nlistener %s 127.0.0.1\\n"
        command = f"printf '{settings}' $PORT $PORT_{other} > broker.conf; exec {BROKER} -c broker.conf"
        wrong = stage("deploy", "broker", str(folder), "--command", command, "--tcp", "mqtt", code=2)
        assert "a port from 1 to 65535" in wrong.output
        deployed = ("deploy", "broker", str(folder), "--command", command, "--initial-scale", "0", "--tcp")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            stage(*deployed, str(number))
            page = asyncio.run(until(lambda: has_line(stage, f"TCP        {number} unavailable")))
            assert f"another program listens at port {number} of 127.0.0.1" in page
            assert "TcpUnavailable" in page
        stage(*deployed, port, "--tcp-port", other)
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
