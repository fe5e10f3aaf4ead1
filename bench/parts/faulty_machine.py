"""A small disk to fill and a clock to set, without harm to the machine."""

import contextlib
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_DISK_MIB = 96
_PIECE = bytes(65536)
_JUMPING = Path(__file__).with_name("jumping")
_OFFSET = struct.Struct("d")


@contextlib.contextmanager
def small_disk(*, mib: int = _DISK_MIB) -> Iterator[Path | None]:
    """A folder on a small file system of its own, as root; else None."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "serving-bench", folder]
        if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607 - the system's own


@contextlib.contextmanager
def fill(folder: Path) -> Iterator[None]:
    """Leave no room on the file system of a folder while the context lasts."""
    filler = folder / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(_PIECE)
        yield
    finally:
        filler.unlink()


class FakeClock:
    """The wall clock of a system's Python processes; ``environment`` is what they need. Monotonic clocks are real."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(_OFFSET.pack(0.0))
        self.environment = {"PYTHONPATH": str(_JUMPING), "BENCH_CLOCK": str(self._file)}

    def jump_to(self, offset_s: float) -> None:
        """Set the clock to real time with an offset in seconds; it holds at once."""
        with self._file.open("r+b") as file:
            file.write(_OFFSET.pack(offset_s))
