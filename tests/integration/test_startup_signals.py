"""A daemon that is stopped during its imports: as the first process of a container it would ignore the signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

# Every process of ours that is started as a module.
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


def test_every_daemon_is_in_the_list() -> None:
    starts = [path for path in (ROOT / "serving").rglob("*.py") if '\nif __name__ == "__main__":' in path.read_text()]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in starts}
    # The base that daemons are forked from is no daemon: it ends with the supervisor, and each fork handles signals
    # from its start. The supervisor's interpreter needs the launch that `serving up` leaves it.
    others = ("serving.tools.cli.", "serving.tools.samples.", "serving.__main__", "serving.home.supervisor.")
    daemons = {name for name in names if not name.startswith(others)}
    assert daemons == set(MODULES)


# Both signals have one handler.
@pytest.mark.parametrize(
    ("module", "number"), [*((name, signal.SIGTERM) for name in MODULES), (MODULES[0], signal.SIGINT)]
)
def test_a_daemon_that_is_stopped_while_it_imports_exits_immediately(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    # An import that never ends. Opening a pipe waits for the other end; a read of it would lose a signal that comes
    # just before it blocks.
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
            # By a handler of its own: the default action, which would be -15, is what the first process of a container
            # lacks.
            assert daemon.wait(timeout=60) == 0
    finally:
        daemon.kill()
        daemon.wait()
