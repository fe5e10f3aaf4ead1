"""The shutdown of ``serving up``; tests of whole systems cover the rest."""

import subprocess
import sys
from pathlib import Path

from serving.home.supervisor.main import REMOVE_LEFTOVERS


def test_leftover_pod_folders_are_removed_by_a_new_interpreter(tmp_path: Path) -> None:
    remaining = tmp_path / "pods" / "one"
    remaining.mkdir(parents=True)
    (remaining / "file").touch()
    subprocess.run([sys.executable, "-c", REMOVE_LEFTOVERS, str(tmp_path)], check=True)
    assert list((tmp_path / "pods").iterdir()) == []
