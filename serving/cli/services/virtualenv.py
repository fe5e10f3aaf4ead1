"""The Python virtual environment that a deployed command runs in: the folder's own, or the one that is active.

A virtual environment is used as a shell uses it: VIRTUAL_ENV is set and its ``bin`` is first in PATH.
"""

from collections.abc import Mapping
from pathlib import Path

from serving.cli.services.deployment import VIRTUAL_ENV
from serving.home.pods.podplan import DEFAULT_PATH

_FOLDERS = (".venv", "venv")
_MARK = "pyvenv.cfg"


def find_virtualenv(folder: Path, environment: Mapping[str, str]) -> Path | None:
    """The virtual environment in a folder, else the active one; None if there is none."""
    candidates = [folder.absolute() / name for name in _FOLDERS]
    if environment.get(VIRTUAL_ENV):
        candidates.append(Path(environment[VIRTUAL_ENV]))
    return next((one for one in candidates if (one / _MARK).is_file()), None)


def environment_of(virtualenv: Path) -> dict[str, str]:
    """The variables by which a command uses a virtual environment."""
    return {VIRTUAL_ENV: str(virtualenv), "PATH": f"{virtualenv / 'bin'}:{DEFAULT_PATH}"}
