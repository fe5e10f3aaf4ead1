"""What a new user types in the first hour, as they type it, against one running system."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_stage import SAMPLE, Stage, staged

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("hour") / "state") as stage:
        yield stage


def test_an_app_on_a_fixed_port_is_told_which_port_it_was_given(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import http.server\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "print('listening on', server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    command = shlex.join([sys.executable, "app.py"])
    done = serving("deploy", "fixed", str(tmp_path), "--command", command, "--wait-timeout", "8", code=1)
    assert re.search(r"listens on port \d+ and was given PORT=\d+; it must listen on \$PORT", done.stderr), done.stderr
    assert re.search(r"fixed-00001 is not ready: .* was given PORT=\d+", serving("why", "fixed").stdout)
    assert re.search(r"fixed-00001-deployment-\w+ +WrongPort", serving("describe", "fixed").stdout)


def test_a_fix_after_a_failed_deploy_is_a_success(serving: Stage, tmp_path: Path) -> None:
    for number in range(3):
        name = f"mended-{number}"
        bad = shlex.join([sys.executable, "-c", "raise SystemExit('no such luck')"])
        done = serving("deploy", name, str(tmp_path), "--command", bad, code=1)
        assert "no such luck" in done.stderr
        # It takes a moment to start, in which the service still has the old failure in its status.
        done = serving("deploy", name, str(tmp_path), "--command", f"sh -c 'sleep 0.5; exec {SAMPLE}'")
        assert "no such luck" not in done.stderr
        assert done.stdout.startswith(f"http://{name}.default.localhost:")


def test_a_fix_is_a_success_for_apply_as_well(serving: Stage) -> None:
    text = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: applied}
spec:
  template:
    metadata:
      annotations: {serving.dev/command: COMMAND}
    spec:
      containers: [{image: applied}]
"""
    slow = f"sh -c 'sleep 0.5; exec {SAMPLE}'"
    for _ in range(3):
        failed = serving("apply", "-f", "-", "--wait", code=1, stdin=text.replace("COMMAND", "sh -c 'exit 7'"))
        assert "exit code 7" in failed.stderr
        done = serving("apply", "-f", "-", "--wait", stdin=text.replace("COMMAND", slow))
        assert "service/applied is ready at" in done.stdout
