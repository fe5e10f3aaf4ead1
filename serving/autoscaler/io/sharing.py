"""Divides revisions among autoscalers: fences writes by shard, and relays stats to the owner.

Without shards this process owns all revisions. With shards, ownership is checked when a write about a group begins, and
by the kube adapter before each call. A shard is released only when none of its writes is in flight. Pods and activators
connect to any autoscaler. It relays their stats to the owner in the same turn of the loop; relayed stats are never
relayed again.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from serving.core.model.knative import RevisionKey
from serving.core.model.stat import Stat
from serving.core.scaling.revision import Group
from serving.core.scaling.scaler.scaler import StatSource
from serving.net.aio.mutualtls import PeerTls
from serving.net.aio.supervise import supervise
from serving.net.cluster.fenced import fencing
from serving.net.cluster.leases.shards import Shards
from serving.net.wire.frames import AnnouncedPod, RelayedStat, RelayedStats, encode_frame
from serving.net.wire.peers import Peers
from serving.net.wire.tokens import autoscaler_token

# Most reports in a frame of at most 1 MiB; a report has about 250 bytes.
_REPORTS_PER_FRAME = 2000
# Time between heartbeats, in seconds, while no lease changes.
_GREETING_S = 0.5
_NOTHING = encode_frame(RelayedStats(stats=[]))


class Sharing:
    """The groups of revisions that this process owns. Several autoscalers share all groups by ``shards``.

    ``shards`` is None if this process owns all groups. It is set before the first decision.
    """

    def __init__(self) -> None:
        self.shards: Shards | None = None
        self._writing: Counter[int] = Counter()
        self._quiet = asyncio.Event()

    def is_ours(self, group: Group) -> bool:
        """Whether this process decides about a group now."""
        return self.shards is None or self.shards.owns(self.shards.of(group))

    def is_in(self, group: Group, shard: int) -> bool:
        """Whether a group belongs to a shard."""
        return self.shards is not None and self.shards.of(group) == shard

    @contextlib.contextmanager
    def writing(self, group: Group) -> Iterator[None]:
        """Guards writes for a group. Raises ``NotLeading`` unless this process owns the group throughout."""
        shards = self.shards
        if shards is None:
            yield
            return
        shard = shards.of(group)
        with fencing(lambda: shards.check(shard)):
            self._writing[shard] += 1
            try:
                yield
            finally:
                self._writing[shard] -= 1
                if not self._writing[shard]:
                    self._quiet.set()

    async def settled(self, shard: int) -> None:
        """Wait until no write for a shard is in flight."""
        while self._writing[shard]:
            self._quiet.clear()
            await self._quiet.wait()


class Relay:
    """Relays reports to the autoscalers that decide about their revisions."""

    def __init__(self, sharing: Sharing, *, group: Callable[[RevisionKey], Group]) -> None:
        self.relayed_count = 0
        self.ownerless_count = 0
        self.peers: Peers | None = None
        self._sharing = sharing
        self._group = group
        self._waiting: dict[str, list[RelayedStat]] = {}

    @property
    def numbers(self) -> dict[str, int]:
        """All counts by name, for metrics."""
        dropped_count = 0 if self.peers is None else self.peers.dropped_count
        return {
            "stats_passed_on_total": self.relayed_count,
            "stats_ownerless_total": self.ownerless_count,
            "stats_relay_dropped_frames_total": dropped_count,
            "shards": 0 if self._sharing.shards is None else len(self._sharing.shards.owned),
        }

    def pass_on(self, key: RevisionKey, stat: Stat, source: StatSource) -> bool:
        """Relay a report to its owner, or drop it if there is none; False if this process owns the revision."""
        shards = self._sharing.shards
        if shards is None or shards.owns(shard := shards.of(self._group(key))):
            return False
        owner = shards.owner(shard)
        if owner is None:
            self.ownerless_count += 1
            return True
        self.relayed_count += 1
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.setdefault(owner.name, []).append(_relayed(key, stat, source))
        return True

    def elsewhere(self, names: Mapping[str, str]) -> str:
        """The address of the autoscaler that owns a revision; "" for this autoscaler.

        A query without a revision is answered from this autoscaler's state.
        """
        shards = self._sharing.shards
        if shards is None:
            return ""
        if names.keys() >= {"namespace", "revision"}:
            owner = shards.owner(shards.of(self._group((names["namespace"], names["revision"]))))
            return "" if owner is None else owner.address
        return "" if shards.owned else next(iter(shards.owners().values()), "")

    def announce(self, pod: AnnouncedPod) -> None:
        """Relay an announced pod to every connected autoscaler, for the activators connected there."""
        if self.peers is not None and (names := self.peers.connected):
            frame = encode_frame(RelayedStats(stats=[], announced=[pod]))
            for name in names:
                self.peers.send(name, frame)

    def greet(self) -> None:
        """Send a heartbeat to every connected autoscaler."""
        if self.peers is not None:
            for name in self.peers.connected:
                self.peers.send(name, _NOTHING)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for name, stats in waiting.items():
            for start in range(0, len(stats), _REPORTS_PER_FRAME):
                frame = encode_frame(RelayedStats(stats=stats[start : start + _REPORTS_PER_FRAME]))
                if self.peers is not None:
                    self.peers.send(name, frame)


def _relayed(key: RevisionKey, stat: Stat, source: StatSource) -> RelayedStat:
    reported = {name: getattr(stat, name) for name in Stat.__struct_fields__ if name != "at_s"}
    is_activator = source is StatSource.ACTIVATOR
    return RelayedStat(namespace=key[0], revision=key[1], is_activator=is_activator, **reported)


@contextlib.asynccontextmanager
async def sharing_out(
    sharing: Sharing, relay: Relay, *, shards: Shards, key: bytes, secured: PeerTls | None
) -> AsyncIterator[None]:
    """Hold this process's shards while the context is open, and keep connections to the other autoscalers."""
    me, stop = shards.options.me, asyncio.Event()
    token = autoscaler_token(key, name=me)
    sharing.shards = shards
    peers = Peers({"autoscaler": me}, token=token, draw=random.random, secured=secured)
    async with peers as relay.peers, supervise() as group:
        group.start(shards.run(stop), name="autoscaler shards")
        keeping = group.start(_greet_peers(shards, relay), name="autoscaler peers")
        try:
            yield
        finally:
            stop.set()
            shards.wake()
            keeping.cancel()


async def _greet_peers(shards: Shards, relay: Relay) -> None:
    while True:
        if relay.peers is not None:
            relay.peers.reach(shards.owners())
        relay.greet()
        await shards.changed(within_s=_GREETING_S)
