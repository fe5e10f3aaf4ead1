"""The end of ``serving up``. Each test of a whole system covers the rest."""

import subprocess
import sys
from pathlib import Path

from serving.home.supervisor.main import REMOVE_LEFTOVERS


def test_what_pods_have_left_is_removed_by_a_new_interpreter(tmp_path: Path) -> None:
    remaining = tmp_path / "pods" / "one"
    remaining.mkdir(parents=True)
    (remaining / "file").touch()
    subprocess.run([sys.executable, "-c", REMOVE_LEFTOVERS, str(tmp_path)], check=True)
    assert list((tmp_path / "pods").iterdir()) == []
