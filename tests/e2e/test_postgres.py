"""PostgreSQL (of Debian) as a service at zero until a client connects."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_stage import Stage, staged
from tests.eventually import until

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), Path("/nowhere"))
PATIENCE_S = 120
MANIFEST = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: database, annotations: {serving.dev/tcp: "PORT"}}
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/initial-scale: "0"
        serving.dev/command: BIN/initdb -D data -A trust -U postgres -N && exec BIN/postgres -D data -p $PORT -k '' -F
    spec: {containers: [{image: dev.local/database}]}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL refuses root, and only as root pods have other users"),
    pytest.mark.skipif(not PROGRAMS.exists() or not shutil.which("psql"), reason="needs Debian's postgresql"),
]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A system with two activators, which share the connections."""
    with staged(tmp_path / "state", "--activators=2") as new_stage:
        yield new_stage


def query_output(port: int, query: str) -> str:
    """The output of psql for a query, over a new connection."""
    completed = subprocess.run(psql(port, "-c", query), check=False, timeout=PATIENCE_S, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


def listen_count(stage: Stage) -> int:
    """The number of times that activators have opened the port."""
    logs = (stage.state / "logs").glob("activator*.log")
    return sum(path.read_text().count("tcp.listen_count") for path in logs)


def psql(port: int, *more: str) -> list[str]:
    return ["psql", "-X", "-At", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", *more]


def test_postgres_at_zero_accepts_clients_and_retains_them_over_reload(stage: Stage) -> None:
    """Takes about 25 s: initdb, two activators and a reload."""
    # Bound here too, so that no other program gets the port.
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        stage("apply", "-f", "-", "--wait", stdin=MANIFEST.replace("BIN", str(PROGRAMS)).replace("PORT", str(port), 1))
        asyncio.run(until(lambda: listen_count(stage) == 2))
        # As with HTTP, a service is ready shortly before each activator knows its revision.
        asyncio.run(until(lambda: subprocess.run(psql(port, "-c", "select 1"), check=False).returncode == 0))
        assert (
            query_output(port, "create table seen (n int); insert into seen select generate_series(1, 50000)")
            == "CREATE TABLE\nINSERT 0 50000"
        )
        # Each query has a new connection, to either activator.
        assert {query_output(port, "select sum(n) from seen") for _ in range(8)} == {"1250025000"}
        with subprocess.Popen(psql(port), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
            assert session.stdin is not None
            assert session.stdout is not None
            session.stdin.write("select 'before';\n")
            session.stdin.flush()
            assert session.stdout.readline() == "before\n"
            stage("up", "--reload")
            asyncio.run(until(lambda: listen_count(stage) == 4))
            assert query_output(port, "select count(*) from seen") == "50000"
            session.stdin.write("select 'after';\n")
            session.stdin.close()
            assert session.stdout.readline() == "after\n"
            assert session.wait(PATIENCE_S) == 0
