"""Logs of pods, read from the files that the kubelet keeps, for ``kubectl logs`` and ``serving logs``.

A log has the bytes that the program wrote and no times, so the server refuses queries by time.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from serving.home.apiserver.logoptions import KeptLog, LogOptions
from serving.home.pods.podfolder import previous_of
from serving.model.errors import NotFound

_PIECE_BYTES = 65536
# Longest delay of new lines for a follower.
_FOLLOW_S = 0.2


class FilePodLogs:
    """Logs below one folder: NAMESPACE/POD/CONTAINER.log, and CONTAINER.previous.log of the run before a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def kept(self, namespace: str) -> list[KeptLog]:
        """The pods of a namespace that have logs, the last one to write first."""
        found = [_kept(folder) for folder in (self._folder / namespace).glob("*")]
        return sorted((one for one in found if one.containers), key=lambda one: one.written_s, reverse=True)

    async def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Pieces of a container's log. Who follows goes on with the next run when the container is restarted.

        Raises:
            NotFound: when there is no such log.
        """
        path = self._folder / namespace / pod / f"{options.container}.log"
        if options.previous:
            path = previous_of(path)
        if not path.is_file():
            run = "previous run" if options.previous else "log"
            raise NotFound(f"no {run} of container {options.container} in pod {pod}")
        left = options.limit_bytes
        async for piece in _pieces(path, options):
            yield piece if left is None else piece[:left]
            if left is not None and (left := left - len(piece)) <= 0:
                return


def _kept(folder: Path) -> KeptLog:
    """What there is of a pod. Its app has a log, or one of the run before a restart that did not come."""
    names, written_s = set(), 0.0
    for log in folder.glob("*.log"):
        names.add(log.name.removesuffix(".log").removesuffix(".previous"))
        with contextlib.suppress(FileNotFoundError):
            written_s = max(written_s, log.stat().st_mtime)
    return KeptLog(pod=folder.name, containers=sorted(names), written_s=written_s)


async def _pieces(path: Path, options: LogOptions) -> AsyncIterator[bytes]:
    file: BinaryIO = path.open("rb")
    try:
        if options.tail_line_count is not None:
            lines = file.read().splitlines(keepends=True)
            yield b"".join(lines[max(0, len(lines) - options.tail_line_count) :])
        while True:
            piece = file.read(_PIECE_BYTES)
            if piece:
                yield piece
            elif not options.follow or options.previous:
                return
            else:
                now_at = _now_at(path, file)
                if now_at is None:
                    return
                if now_at is not file:
                    file.close()
                    file = now_at
                    continue
                if file.tell() > os.fstat(file.fileno()).st_size:
                    # The log was rotated: read from its beginning.
                    file.seek(0)
                await asyncio.sleep(_FOLLOW_S)
    finally:
        file.close()


def _now_at(path: Path, file: BinaryIO) -> BinaryIO | None:
    """What is to be read on: the same file, that of the next run after a restart, or nothing because the pod is gone."""
    own = os.fstat(file.fileno()).st_ino
    try:
        return file if path.stat().st_ino == own else path.open("rb")
    except FileNotFoundError:
        pass
    try:
        # Put aside a moment ago; the next run has not begun.
        return file if previous_of(path).stat().st_ino == own else None
    except FileNotFoundError:
        return None
