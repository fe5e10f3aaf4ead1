"""Events over a memory store that fails on demand."""

import pytest

from serving.core.model.errors import Unavailable
from serving.core.model.event import EventText, about, new_event
from serving.core.model.objects import Object
from serving.home.store.memory import MemoryCluster
from serving.net.cluster import events
from serving.net.cluster.events import EventRecorder, write_once
from serving.net.cluster.kinds import EVENT, Kind
from serving.net.cluster.port import Subresource, Write

OF = about({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "hello", "uid": "1"}})


def event(message: str = "boom", *, now: str = "2026-11-21T04:00:00Z") -> Object:
    return new_event(OF, EventText(reason="Failed", message=message), suffix=message, component="test", now=now)


class CountingCluster(MemoryCluster):
    """A store that counts its calls, and fails while ``fails``."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.read_count = self.write_count = 0

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        self.read_count += 1
        return await super().get(kind, namespace, name, subresource=subresource)

    async def write(self, write: Write) -> Object:
        self.write_count += 1
        if self.fails:
            raise Unavailable("down")
        return await super().write(write)


async def counts(cluster: MemoryCluster) -> dict[str, int]:
    return {entry["message"]: entry["count"] for entry in (await cluster.list(EVENT)).items}


async def test_repeated_event_is_counted_without_a_read() -> None:
    cluster = CountingCluster()
    recorder = EventRecorder(cluster)
    for message in ("boom", "boom", "other", "boom"):
        await recorder.record(event(message))
    assert await counts(cluster) == {"boom": 3, "other": 1}
    assert (cluster.read_count, cluster.write_count, recorder.writes_count) == (0, 4, 4)


async def test_repeated_event_updates_last_timestamp() -> None:
    cluster = MemoryCluster()
    recorder = EventRecorder(cluster)
    for now in ("2026-11-21T04:00:00Z", "2026-11-21T05:00:00Z"):
        await recorder.record(event(now=now))
    (entry,) = (await cluster.list(EVENT)).items
    assert (entry["firstTimestamp"], entry["lastTimestamp"]) == ("2026-11-21T04:00:00Z", "2026-11-21T05:00:00Z")


async def test_event_of_another_process_is_counted() -> None:
    cluster = MemoryCluster()
    for _ in range(2):
        await EventRecorder(cluster).record(event())
    assert await counts(cluster) == {"boom": 2}


async def test_expired_event_is_created_again() -> None:
    cluster = MemoryCluster()
    recorder = EventRecorder(cluster)
    await recorder.record(event())
    await cluster.delete(EVENT, "default", event()["metadata"]["name"])
    await recorder.record(event())
    assert await counts(cluster) == {"boom": 1}


async def test_failed_write_is_logged_and_next_event_is_written(caplog: pytest.LogCaptureFixture) -> None:
    cluster = CountingCluster()
    recorder = EventRecorder(cluster)
    await recorder.record(event())
    cluster.fails = True
    await recorder.record(event())
    cluster.fails = False
    await recorder.record(event())
    assert await counts(cluster) == {"boom": 2}
    assert [record.message for record in caplog.records] == ["event.unwritten"]


async def test_evicted_event_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_KNOWN_MAX", 1)
    cluster = CountingCluster()
    recorder = EventRecorder(cluster)
    for message in ("boom", "other", "boom"):
        await recorder.record(event(message))
    assert await counts(cluster) == {"boom": 2, "other": 1}
    assert cluster.read_count == 1


async def test_write_once_writes_repeated_event_once() -> None:
    cluster = MemoryCluster()
    for message in ("boom", "boom", "other"):
        await write_once(cluster, event(message))
    assert await counts(cluster) == {"boom": 1, "other": 1}


async def test_write_once_logs_failed_write(caplog: pytest.LogCaptureFixture) -> None:
    cluster = CountingCluster()
    cluster.fails = True
    await write_once(cluster, event())
    assert [(record.message, record.__dict__["event"]) for record in caplog.records] == [
        ("event.unwritten", "hello.boom")
    ]
