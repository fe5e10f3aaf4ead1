"""What pods have written, from the files that the kubelet keeps, for ``kubectl logs`` and ``serving logs``."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from serving.cluster.api.logs import LogOptions
from serving.model.errors import NotFound

__all__ = ["FilePodLogs"]

_PIECE_BYTES = 65536
# How long new lines may be late for one who follows.
_FOLLOW_S = 0.2


class FilePodLogs:
    """Logs below one folder: NAMESPACE/POD/CONTAINER.log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Pieces of a container's log. Raises ``NotFound``."""
        path = self._folder / namespace / pod / f"{options.container}.log"
        if not path.is_file():
            raise NotFound(f"no log of container {options.container} in pod {pod}")
        with path.open("rb") as file:
            if options.tail_line_count is not None:
                lines = file.read().splitlines(keepends=True)
                yield b"".join(lines[max(0, len(lines) - options.tail_line_count) :])
            while True:
                piece = file.read(_PIECE_BYTES)
                if piece:
                    yield piece
                elif not options.follow or not path.exists():
                    return
                else:
                    await asyncio.sleep(_FOLLOW_S)
