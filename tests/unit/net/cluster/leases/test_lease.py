from typing import Any

import pytest

from serving.core.model.errors import AlreadyExists, Conflict
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import LEASE
from serving.net.cluster.leases.lease import (
    LeaseClient,
    LeaseName,
    acquired_record,
    record_of,
    released_record,
    renewed_record,
)
from serving.net.cluster.leases.rules import LeaseRecord, LeaseTimes

NAME = LeaseName(namespace="knative-serving", name="controller")
WALL_S = 1_795_231_800.25
STAMP = "2026-11-21T03:30:00.250000Z"
MINE = LeaseRecord(holder="me", duration_s=15.0, acquired=STAMP, renewed=STAMP)


def test_lease_without_holder_is_free() -> None:
    spec: dict[str, Any] = {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": STAMP,
        "renewTime": STAMP,
        "leaseTransitions": 0,
    }
    assert record_of({"spec": spec}) == MINE
    assert record_of({}) == LeaseRecord(holder="", duration_s=0.0)
    assert record_of({"spec": {"holderIdentity": None, "leaseTransitions": None}}).holder == ""


def test_transition_count_increases_with_change_of_holder() -> None:
    times = LeaseTimes(duration_s=15.0)
    first = acquired_record(None, "me", times, wall_s=WALL_S)
    assert first == MINE
    assert acquired_record(first, "me", times, wall_s=WALL_S).transition_count == 0
    assert acquired_record(first, "other", times, wall_s=WALL_S).transition_count == 1


def test_renewal_changes_renew_time_and_release_clears_holder() -> None:
    later = renewed_record(MINE, wall_s=WALL_S + 2)
    assert (later.acquired, later.renewed) == (STAMP, "2026-11-21T03:30:02.250000Z")
    free = released_record(later, wall_s=WALL_S + 3)
    assert (free.holder, free.duration_s, free.transition_count) == ("", 1.0, 0)


async def test_lease_update_preserves_labels_written_by_others() -> None:
    cluster = MemoryCluster()
    client = LeaseClient(cluster, NAME, annotations={"serving.dev/address": "10.0.0.1:6081"})
    assert await client.read() is None
    assert await client.write(MINE) == MINE
    await cluster.patch(LEASE, NAME.namespace, NAME.name, patch={"metadata": {"labels": {"team": "a"}}})
    assert await client.read() == MINE
    await client.write(renewed_record(MINE, wall_s=WALL_S + 2))
    lease = await cluster.get(LEASE, NAME.namespace, NAME.name)
    assert lease["metadata"]["labels"] == {"team": "a"}
    assert lease["metadata"]["annotations"] == {"serving.dev/address": "10.0.0.1:6081"}
    assert record_of(lease).renewed == "2026-11-21T03:30:02.250000Z"


async def test_second_of_two_concurrent_writers_gets_conflict() -> None:
    cluster = MemoryCluster()
    client, other_client = LeaseClient(cluster, NAME), LeaseClient(cluster, NAME)
    await client.read()
    await other_client.read()
    await client.write(MINE)
    with pytest.raises(AlreadyExists):
        await other_client.write(MINE)
    await other_client.read()
    await other_client.write(renewed_record(MINE, wall_s=WALL_S + 1))
    with pytest.raises(Conflict):
        await client.write(renewed_record(MINE, wall_s=WALL_S + 2))
