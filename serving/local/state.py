"""The state folder of ``serving up``: who holds it, and the secrets in it. Standard library only.

The folder is 0700 and everything secret in it 0600: the API's token is the right to run code on this machine.
"""

import fcntl
import os
import secrets
from pathlib import Path

from serving.cluster.api.kubeconfig import kubeconfig
from serving.model.errors import Problem, SettingsError

__all__ = ["StateFolder", "default_state_path"]

_KEY_BYTES = 32
_PRIVATE = 0o600


def default_state_path() -> Path:
    """Where state is kept unless ``--state`` says otherwise: $XDG_STATE_HOME/serving, or ~/.local/state/serving."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "serving"


class StateFolder:
    """The paths in it. ``open`` makes what is missing and takes the lock, which lasts as long as this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = path / "key"
        self.token = path / "token"
        self.kubeconfig = path / "kubeconfig"
        self.journal = path / "journal.db"
        self.logs = path / "logs"
        self.pods = path / "pods"
        self._lock_path = path / "lock"
        self._lock_fd: int | None = None

    def open(self, api_url: str) -> None:
        """Make folder, key, token and kubeconfig; take the lock.

        Raises:
            SettingsError: when somebody else holds the folder; it says who.
        """
        for folder in (self.path, self.logs, self.pods):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_lock()
        if not self.key.exists():
            _write_private(self.key, secrets.token_bytes(_KEY_BYTES))
        if not self.token.exists():
            _write_private(self.token, secrets.token_urlsafe(_KEY_BYTES).encode())
        _write_private(self.kubeconfig, kubeconfig(api_url, self.token.read_text()).encode())

    def _take_lock(self) -> None:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            what = f"process {holder} holds this state folder"
            problem = Problem(
                where=str(self.path), what=what, expected="one `serving up` at a time, or another --state"
            )
            raise SettingsError([problem]) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock_fd = descriptor


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    made = path.with_name(path.name + ".new")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    made.rename(path)
