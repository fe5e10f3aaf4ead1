"""``serving deploy --watch``: deploys a folder again whenever one of its files changes, until it is interrupted."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from serving.cli.client.progress import say_aside
from serving.home.pods.snapshot import fingerprint

_POLL_S = 0.3


def watch_folder(folder: Path, deploy: Callable[[], None]) -> None:
    """Deploy, and again after each change. A deploy that fails has said why; the next change is the next try."""
    while True:
        seen = fingerprint(folder)
        try:
            deploy()
        except SystemExit as error:
            say_aside(f"deploy failed (exit code {error.code}); waiting for a change")
        else:
            say_aside(f"watching {folder}; Ctrl-C ends it")
        sys.stdout.flush()
        while (now := fingerprint(folder)) == seen:
            time.sleep(_POLL_S)
        # An editor or a checkout writes many files: they are one change.
        while (later := fingerprint(folder)) != now:
            now = later
            time.sleep(_POLL_S)
