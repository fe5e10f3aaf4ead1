import asyncio
import os
from pathlib import Path

import pytest

from serving.core.model.errors import NotFound
from serving.home.apiserver.logoptions import LogOptions
from serving.home.kubelet.podstreams import FilePodLogs
from serving.home.pods.podfolder import previous_of, rotate, rotate_previous
from serving.home.pods.podlogs import LogTimes
from tests.eventually import next_turn


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "default" / "hello-1" / "app.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one\ntwo\nthree\n")
    return path


async def read(log: Path, **arguments: object) -> bytes:
    options = LogOptions(container="app", **arguments)  # type: ignore[arg-type]
    logs = FilePodLogs(log.parents[2])
    return b"".join([piece async for piece in logs.read("default", "hello-1", options)])


async def test_log_read_supports_tail_lines_and_byte_limit(log: Path) -> None:
    assert await read(log) == b"one\ntwo\nthree\n"
    assert await read(log, tail_line_count=1) == b"three\n"
    assert await read(log, tail_line_count=0) == b""
    assert await read(log, limit_bytes=5) == b"one\nt"
    assert await read(log, limit_bytes=100) == b"one\ntwo\nthree\n"


async def test_log_of_previous_run_is_separate(log: Path) -> None:
    with pytest.raises(NotFound, match="no previous run of container app in pod hello-1"):
        await read(log, previous=True)
    rotate_previous(log)
    with pytest.raises(NotFound, match="no log of container app"):
        await read(log)
    log.write_bytes(b"again\n")  # noqa: ASYNC240 - a few bytes
    assert await read(log) == b"again\n"
    assert await read(log, previous=True, follow=True) == b"one\ntwo\nthree\n"
    assert previous_of(log).name == "app.previous.log"
    rotate_previous(log.with_name("never.log"))


async def test_followed_log_continues_after_restart_and_truncation(log: Path) -> None:
    logs = FilePodLogs(log.parents[2])
    pieces = logs.read("default", "hello-1", LogOptions(container="app", follow=True))
    async with asyncio.timeout(60):
        assert await anext(pieces) == b"one\ntwo\nthree\n"
        rotate_previous(log)
        next_run = asyncio.ensure_future(anext(pieces))
        # The reader polls for the next run, which does not exist yet.
        await next_turn()
        log.write_bytes(b"a run\n")  # noqa: ASYNC240 - a few bytes
        assert await next_run == b"a run\n"
        os.truncate(log, 0)
        log.write_bytes(b"new\n")  # noqa: ASYNC240 - as above
        assert await anext(pieces) == b"new\n"
        log.unlink()  # noqa: ASYNC240 - as above
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)


async def test_timestamped_log_includes_rotated_files(log: Path) -> None:
    times = LogTimes()
    times.record([log.parent], wall_s=1_000)
    rotate(log, bytes_max=1)
    log.write_bytes(b"four\nfive")  # noqa: ASYNC240 - a few bytes
    times.record([log.parent], wall_s=2_000)
    assert await read(log, timestamps=True, tail_line_count=3) == (
        b"1970-01-01T00:16:40.000000Z three\n1970-01-01T00:33:20.000000Z four\n1970-01-01T00:33:20.000000Z five"
    )
    assert await read(log, since_stamp="1970-01-01T00:20:00Z") == b"four\nfive"
    assert await read(log, since_stamp="1970-01-01T01:20:00+01:00") == b"four\nfive"
    assert await read(log, since_s=60) == b""
    rotate_previous(log)
    # As of a pod that was deleted before its next start.
    assert await read(log, since_stamp="1970-01-01T00:20:00Z") == b"four\nfive"


async def test_followed_log_with_timestamps_has_whole_lines(log: Path) -> None:
    log.write_bytes(b"one\ntw")  # noqa: ASYNC240 - a few bytes
    logs = FilePodLogs(log.parents[2])
    pieces = logs.read("default", "hello-1", LogOptions(container="app", follow=True, timestamps=True))
    async with asyncio.timeout(60):
        assert (await anext(pieces)).endswith(b"Z one\n")
        log.write_bytes(b"one\ntwo\n")  # noqa: ASYNC240 - as above
        assert (await anext(pieces)).endswith(b"Z two\n")
        log.unlink()  # noqa: ASYNC240 - as above
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)
