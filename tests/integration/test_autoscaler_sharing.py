"""Two autoscalers over one store: a report to the non-owner of a shard is relayed to its owner, once, immediately."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from serving.autoscaler.main import AutoscalerDaemon
from serving.core.model.identities import ACTIVATOR, AUTOSCALER
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.election import ElectionSettings
from serving.core.settings.innertls import ENABLED, InnerTlsSettings
from serving.net.cluster.kinds import DEPLOYMENT, LEASE
from serving.net.wire.frames import (
    ActivatorStats,
    PodStat,
    RelayedStat,
    RelayedStats,
    RevisionStat,
    encode_frame,
)
from serving.net.wire.issuing import daemon_tls
from serving.net.wire.tokens import activator_token, autoscaler_token, pod_token
from serving.net.wire.websocket import connected
from tests.integration.autoscaler_stage import KEY, NAME, Store
from tests.integration.query_token import HEADERS

# A lease lasts longer than any test, so a shard changes its owner only after a release.
QUICK = ElectionSettings(enabled=True, lease_duration_s=300.0, renew_deadline_s=200.0, retry_period_s=0.4)


class Pair:
    """Two daemons; one has the only shard."""

    def __init__(self, store: Store, daemons: dict[str, AutoscalerDaemon]) -> None:
        self.store, self.daemons = store, daemons
        self.stops = {me: asyncio.Event() for me in daemons}

    async def settle(self) -> None:
        async with asyncio.timeout(60):
            while not (self.owners() and all(self.others_know())):  # noqa: ASYNC110 - two daemons are polled
                await asyncio.sleep(0.01)

    def owners(self) -> list[AutoscalerDaemon]:
        return [
            autoscaler_daemon
            for autoscaler_daemon in self.daemons.values()
            if autoscaler_daemon.relay.numbers["shards"]
        ]

    def others_know(self) -> list[bool]:
        return [
            autoscaler_daemon.relay.peers is not None and bool(autoscaler_daemon.relay.peers.connected)
            for autoscaler_daemon in self.daemons.values()
            if not autoscaler_daemon.relay.numbers["shards"]
        ]

    @property
    def owner(self) -> AutoscalerDaemon:
        (autoscaler_daemon,) = self.owners()
        return autoscaler_daemon

    @property
    def other(self) -> AutoscalerDaemon:
        return next(
            autoscaler_daemon for autoscaler_daemon in self.daemons.values() if autoscaler_daemon is not self.owner
        )

    async def scale(self) -> int:
        deployment = await self.store.cluster.get(DEPLOYMENT, "default", f"{NAME}-deployment")
        return int(deployment["spec"]["replicas"])


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with paired(AutoscalerSettings(stats_address="127.0.0.1:0")) as new_pair:
        yield new_pair


@contextlib.asynccontextmanager
async def paired(settings: AutoscalerSettings) -> AsyncIterator[Pair]:
    store = Store()
    await store.fill(scale=1)
    await store.add_pod("pod-1")
    daemons = {
        me: AutoscalerDaemon(settings, store.cluster, key=KEY, election=QUICK, me=me) for me in ("first", "second")
    }
    new_pair = Pair(store, daemons)
    async with asyncio.TaskGroup() as group:
        for me, autoscaler_daemon in daemons.items():
            group.create_task(autoscaler_daemon.run(new_pair.stops[me]))
        await new_pair.settle()
        yield new_pair
        for stop in new_pair.stops.values():
            stop.set()
    await store.cluster.close()


def joining(daemon: AutoscalerDaemon, query: str, token: str) -> connect:
    url = "ws://{}:{}/stats?{}".format(*daemon.address, query)
    return connect(url, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None)


@contextlib.asynccontextmanager
async def scaled(pair: Pair, count: int) -> AsyncIterator[None]:
    """Wait after the block until the scale is `count`."""
    listing = await pair.store.cluster.list(DEPLOYMENT)
    async with pair.store.cluster.watch(DEPLOYMENT, resource_version=listing.resource_version) as events:
        yield
        async with asyncio.timeout(60):
            async for event in events:
                if event.object["spec"]["replicas"] == count:
                    return


async def test_poke_to_other_autoscaler_is_relayed_and_decided_immediately_by_owner() -> None:
    poke = encode_frame(
        ActivatorStats(stats=[RevisionStat(namespace="default", revision=NAME, concurrency=35, request_count=35)])
    )
    # Without a poke the next decision follows after a minute.
    async with paired(AutoscalerSettings(stats_address="127.0.0.1:0", decision_period_s=60.0)) as pair:
        async with joining(pair.other, "activator=a", activator_token(KEY, name="a")) as connection, scaled(pair, 5):
            await connection.send(poke)
        (decision,) = [
            history_entry
            for history_entry in pair.owner.autoscaler.decisions(("default", NAME))
            if history_entry.outcome.apply_count == 5
        ]
        assert decision.outcome.inputs.cause == "load"
        assert pair.other.relay.numbers["stats_passed_on_total"] == 1
        assert pair.owner.server.numbers["stats_relayed_stats_total"] == 1
        assert pair.other.autoscaler.numbers()["scale_writes_total"] == 0


async def test_report_is_relayed_over_inner_tls() -> None:
    secured = InnerTlsSettings(mode=ENABLED)
    tls = daemon_tls(KEY, ACTIVATOR, secured)
    assert tls is not None
    poke = ActivatorStats(stats=[RevisionStat(namespace="default", revision=NAME, concurrency=35, request_count=35)])
    settings = AutoscalerSettings(stats_address="127.0.0.1:0", decision_period_s=60.0, inner_tls=secured)
    async with paired(settings) as pair:
        url = "ws://{}:{}/stats?activator=a".format(*pair.other.address)
        connecting = connected(url, token=activator_token(KEY, name="a"), secured=tls.to(AUTOSCALER))
        async with connecting as link, scaled(pair, 5):
            await link.send(encode_frame(poke))
        assert pair.owner.server.numbers["stats_relayed_stats_total"] == 1


async def test_relayed_pod_report_scales_without_proxied_part(pair: Pair) -> None:
    token = pod_token(KEY, namespace="default", revision=NAME, pod="pod-1")
    reported = PodStat(at_s=time.time(), concurrency=40, request_count=40, proxied_concurrency=5)
    query = f"namespace=default&revision={NAME}&pod=pod-1"
    async with joining(pair.other, query, token) as connection, scaled(pair, 5):
        await connection.send(encode_frame(reported))
    counts = [entry.outcome.apply_count for entry in pair.owner.autoscaler.decisions(("default", NAME))]
    # 35 requests at a target of 7 per pod. With the proxied part, 40 requests need 6 pods.
    assert max(count or 0 for count in counts) == 5
    assert pair.other.relay.numbers["stats_passed_on_total"] == 1
    assert pair.owner.server.numbers["stats_relayed_stats_total"] == 1


async def test_relayed_report_is_not_relayed_again(pair: Pair) -> None:
    stat = RelayedStat(namespace="default", revision=NAME, pod="a", is_activator=True, concurrency=50)
    token = autoscaler_token(KEY, name="third")
    async with joining(pair.other, "autoscaler=third", token) as connection:
        await connection.send(encode_frame(RelayedStats(stats=[stat])))
        async with asyncio.timeout(60):
            while not pair.other.autoscaler.numbers()["unknown_stats_total"]:  # noqa: ASYNC110 - a counter is polled
                await asyncio.sleep(0.01)
        assert "third" in pair.other.server.autoscalers
    assert pair.other.relay.numbers["stats_passed_on_total"] == 0
    assert pair.owner.server.numbers["stats_relayed_stats_total"] == 0
    assert await pair.scale() == 1


async def test_only_autoscalers_can_relay_reports(pair: Pair) -> None:
    for token in (autoscaler_token(KEY, name="other"), activator_token(KEY, name="third")):
        with pytest.raises(InvalidStatus) as caught:
            await joining(pair.other, "autoscaler=third", token)
        assert caught.value.response.status_code == 401


async def test_decisions_query_is_redirected_to_owner(pair: Pair) -> None:
    at_owner, at_other = (
        "http://{}:{}".format(*autoscaler_daemon.address) for autoscaler_daemon in (pair.owner, pair.other)
    )
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        for path in ("/decisions", f"/decisions?namespace=default&revision={NAME}"):
            async with session.get(at_other + path, allow_redirects=False) as reply:
                assert (reply.status, reply.headers["Location"]) == (307, at_owner + path)
            async with session.get(at_owner + path) as reply:
                assert reply.status == 200
        async with session.get(f"{at_other}/decisions?follow", allow_redirects=False) as reply:
            followed = reply.headers["Location"]
        async with session.get(followed) as reply:
            async with asyncio.timeout(60):
                assert (await reply.content.readline()).startswith(b"event: ")


async def test_stopping_leader_releases_its_shard_and_other_decides(pair: Pair) -> None:
    (before,) = (me for me, autoscaler_daemon in pair.daemons.items() if autoscaler_daemon is pair.owner)
    after = pair.other
    pair.stops[before].set()
    async with asyncio.timeout(60):
        while pair.owners() != [after]:  # noqa: ASYNC110 - two daemons are polled
            await asyncio.sleep(0.01)
    poke = ActivatorStats(stats=[RevisionStat(namespace="default", revision=NAME, concurrency=35, request_count=35)])
    async with joining(after, "activator=a", activator_token(KEY, name="a")) as connection, scaled(pair, 5):
        await connection.send(encode_frame(poke))


async def lease_holders(pair: Pair) -> list[tuple[str, int]]:
    """The holder and the transition count of each lease."""
    specs = [lease["spec"] for lease in (await pair.store.cluster.list(LEASE)).items]
    return [(spec["holderIdentity"], spec["leaseTransitions"]) for spec in specs]


async def test_joining_and_leaving_autoscaler_does_not_move_the_only_shard(pair: Pair) -> None:
    owner, other = pair.owner, pair.other
    assert owner.relay.elsewhere({}) == ""
    owner_url = other.relay.elsewhere({})
    before = await lease_holders(pair)
    stop = asyncio.Event()
    third = AutoscalerDaemon(
        AutoscalerSettings(stats_address="127.0.0.1:0"), pair.store.cluster, key=KEY, election=QUICK, me="third"
    )
    running = asyncio.create_task(third.run(stop))
    async with asyncio.timeout(60):
        while not (third.relay.peers and third.relay.peers.connected):  # noqa: ASYNC110 - a daemon is polled
            await asyncio.sleep(0.01)
    assert third.relay.elsewhere({}) == owner_url
    assert third.relay.numbers["shards"] == 0
    stop.set()
    await running
    # The lease has not moved in between.
    assert await lease_holders(pair) == before
    assert pair.owner is owner
    assert other.relay.numbers["shards"] == 0


async def test_revision_metrics_are_only_on_page_of_its_owner(pair: Pair) -> None:
    poke = ActivatorStats(stats=[RevisionStat(namespace="default", revision=NAME, concurrency=35, request_count=35)])
    async with joining(pair.other, "activator=a", activator_token(KEY, name="a")) as connection, scaled(pair, 5):
        await connection.send(encode_frame(poke))
    at_owner, at_other = (
        autoscaler_daemon.metrics.page.text("text/plain") for autoscaler_daemon in (pair.owner, pair.other)
    )
    assert "kn_revision_pods_desired{" in at_owner
    assert NAME in at_owner
    assert NAME not in at_other
    assert "autoscaler_shards 1.0" in at_owner
    assert "autoscaler_shards 0.0" in at_other
