"""A daemon that is stopped during its imports exits; as PID 1 of a container it would ignore an unhandled signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

# Every daemon that is started as a module.
MODULES = [
    "serving.asgi",
    "serving.activator.main",
    "serving.autoscaler.main",
    "serving.controller.main",
    "serving.tools.dashboard.main",
    "serving.home.acme.main",
    "serving.home.main",
    "serving.home.processes.template",
    "serving.nodes.nodegroup.main",
    "serving.nodes.extender.main",
    "serving.queueproxy.main",
]


def test_list_contains_every_daemon_module() -> None:
    starts = [path for path in (ROOT / "serving").rglob("*.py") if '\nif __name__ == "__main__":' in path.read_text()]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in starts}
    # The base process for forked daemons is not a daemon: it ends with the supervisor, and each fork handles signals
    # from its start. The supervisor's interpreter needs a launch file of `serving up`.
    others = ("serving.tools.cli.", "serving.tools.samples.", "serving.__main__", "serving.home.supervisor.")
    daemons = {name for name in names if not name.startswith(others)}
    assert daemons == set(MODULES)


# Both signals have one handler.
@pytest.mark.parametrize(
    ("module", "number"), [*((name, signal.SIGTERM) for name in MODULES), (MODULES[0], signal.SIGINT)]
)
def test_signal_during_imports_exits_daemon_with_0(module: str, number: signal.Signals, tmp_path: Path) -> None:
    # An import that never ends. Opening the pipe waits for the test; a blocking read could miss a signal that arrives
    # just before.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "uvloop.py").write_text(f"import time\nopen({str(pipe)!r})\nwhile True: time.sleep(0.01)\n")
    arguments = ["uvloop:app"] if module == "serving.asgi" else []
    daemon = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    try:
        with pipe.open("w"):
            daemon.send_signal(number)
            # 0 shows that a handler ran; PID 1 of a container has no default action, which would yield -15.
            assert daemon.wait(timeout=60) == 0
    finally:
        daemon.kill()
        daemon.wait()
