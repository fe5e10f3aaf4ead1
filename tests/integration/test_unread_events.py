"""Events that daemons send to the API are written when a client reads Events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from serving.core.model.errors import AlreadyExists
from serving.core.model.event import About, EventText, new_event
from serving.core.model.objects import Object
from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.events import EventRecorder
from serving.net.cluster.identity import user_agent
from serving.net.cluster.kinds import EVENT
from serving.net.cluster.kube import KubeCluster
from serving.net.cluster.port import Create
from tests.integration.api_server import served

EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
ABOUT = About(api_version="serving.knative.dev/v1", kind="Revision", namespace="default", name="hello-00001")


def an_event(message: str, *, suffix: str = "scaled-0", now: str = EARLIER) -> Object:
    words = EventText(reason="Scaled", message=message)
    return new_event(ABOUT, words, suffix=suffix, component="serving-autoscaler", now=now)


class Stage(msgspec.Struct, frozen=True):
    """A served store, with a client and a daemon of its API."""

    store: MemoryCluster
    client: KubeCluster
    daemon: KubeCluster

    @property
    def stored_count(self) -> int:
        return len(self.store.table(EVENT).objects)

    async def messages(self) -> list[str]:
        return [str(event["message"]) for event in (await self.client.list(EVENT, "default")).items]


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    store = MemoryCluster(admit=admit)
    async with (
        served(store, folder) as api,
        KubeCluster(str(api.kubeconfig)) as client,
        KubeCluster(str(api.kubeconfig), user_agent=user_agent("autoscaler", "a_1")) as daemon,
    ):
        yield Stage(store, client, daemon)


async def test_daemon_events_are_stored_when_a_client_lists_events(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        daemon_event = await stage.daemon.create(EVENT, an_event("0 → 1"))
        await stage.daemon.write_together([Create(kind=EVENT, body=an_event("1 → 0", suffix="scaled-1"))])
        await stage.daemon.replace(EVENT, an_event("1 → 2", now=LATER))
        assert not stage.stored_count
        assert await stage.messages() == ["1 → 2", "1 → 0"]
        (event, _) = (await stage.client.list(EVENT, "default")).items
        assert event["metadata"]["creationTimestamp"] >= daemon_event["metadata"]["creationTimestamp"]
        assert event["lastTimestamp"] == LATER
        await stage.daemon.replace(EVENT, an_event("2 → 0"))
        assert await stage.messages() == ["2 → 0", "1 → 0"]


@pytest.mark.parametrize("is_read", [False, True])
async def test_restarted_daemon_continues_the_count_of_an_event(tmp_path: Path, is_read: bool) -> None:
    async with staged(tmp_path) as stage:
        await EventRecorder(stage.daemon).record(an_event("repeated"))
        if is_read:
            assert await stage.messages() == ["repeated"]
        await EventRecorder(stage.daemon).record(an_event("repeated", now=LATER))
        (event,) = (await stage.client.list(EVENT, "default")).items
        assert (event["count"], event["lastTimestamp"]) == (2, LATER)


async def test_watch_delivers_daemon_events_immediately(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.daemon.create(EVENT, an_event("0 → 1"))
        version = (await stage.client.list(EVENT, "default")).resource_version
        async with asyncio.timeout(60), stage.client.watch(EVENT, "default", resource_version=version) as events:
            await stage.client.create(EVENT, an_event("a client's", suffix="own"))
            assert (await anext(events)).object["message"] == "a client's"
            await stage.daemon.create(EVENT, an_event("1 → 0", suffix="scaled-1"))
            assert (await anext(events)).object["message"] == "1 → 0"


async def test_other_writes_apply_to_delayed_events(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        recorder = EventRecorder(stage.daemon)
        await recorder.record(an_event("repeated"))
        await recorder.record(an_event("repeated", now=LATER))
        (event,) = (await stage.client.list(EVENT, "default")).items
        assert (event["count"], event["lastTimestamp"]) == (2, LATER)
        await stage.daemon.create(EVENT, an_event("deleted", suffix="other"))
        await stage.client.delete(EVENT, "default", "hello-00001.other")
        assert await stage.messages() == ["repeated"]
        await stage.daemon.create(EVENT, an_event("delayed", suffix="other"))
        with pytest.raises(AlreadyExists):
            await stage.client.create(EVENT, an_event("a client's", suffix="other"))


async def test_delayed_events_of_unknown_namespace_are_dropped(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        body = an_event("0 → 1")
        body["metadata"]["namespace"] = body["involvedObject"]["namespace"] = "gone"
        await stage.daemon.create(EVENT, body)
        await stage.daemon.create(EVENT, an_event("0 → 1"))
        assert await stage.messages() == ["0 → 1"]
        assert stage.stored_count == 1
