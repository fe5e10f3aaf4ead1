"""Holds a fair share of several leases: ``plan`` computes the share, a ``LeaseElector`` holds each lease.

One watch delivers all leases, so that every process has all owners within milliseconds. ``on_won`` is called when this
process gets a shard, and must not block. ``on_lost`` is awaited after a shard is lost and before its lease is released,
so that no late write overlaps the next owner's writes. ``owns`` and ``check`` read the clock, so they are correct in a
process that was frozen, even before ``on_lost`` has run.

Leases of another shard count divide the same work differently. While any of those has a holder, no shard is acquired.
"""

import asyncio
import contextlib
import logging
import math
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import msgspec

from serving.core.model.errors import NotLeading
from serving.core.model.knative import REPLICA_ADDRESS_ANNOTATION, SHARDS_LABEL
from serving.core.model.objects import Object, nested
from serving.net.aio.clock import now_s, steady_s
from serving.net.aio.periodic import wait_for
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import LEASE
from serving.net.cluster.leases.holder import LeaseElector
from serving.net.cluster.leases.lease import LeaseClient, LeaseName
from serving.net.cluster.leases.rules import LeaseAction, LeaseTimes
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector

_log = logging.getLogger(__name__)
# Share of the renew deadline by which one shard may delay the renewals of others.
_REST_RATIO = 0.3
# Lease durations for which a process keeps a shard that its planned owner did not acquire.
_KEEPING_DURATIONS = 8
# Shorter waits cost a loop iteration each, and may be below the clock's resolution, in seconds.
_PAUSE_MIN_S = 0.001
# Time between two checks of ``stop`` before the leases have been listed, in seconds.
_SYNC_CHECK_S = 0.5


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The shards to acquire, and the shard to release (None: no shard)."""

    take: tuple[int, ...] = ()
    let_go: int | None = None


def shard_of(group: tuple[str, str], shard_count: int) -> int:
    """The shard of a group of revisions, from its namespace and name; equal in all processes and versions."""
    return zlib.crc32("/".join(group).encode()) % shard_count


def shard_name(daemon: str, shard: int, shard_count: int) -> str:
    """The name of a shard's lease, in the form of Knative's buckets: "autoscaler-bucket-00-of-10"."""
    return f"{daemon}-bucket-{shard:02d}-of-{shard_count:02d}"


def plan(
    shard_count: int,
    *,
    me: str,
    holders: Mapping[int, str],
    others: Iterable[str],
    free_long: Collection[int],
) -> ShardPlan:
    """Plan the shards to acquire and release, so that each process holds its share.

    ``holders`` have unexpired leases; ``others`` are the other processes. A shard in ``free_long`` was free for so long
    that it is acquired in excess of the share.
    """
    members = {me, *holders.values(), *others}
    allotment = -(-shard_count // len(members))
    mine = [shard for shard in range(shard_count) if holders.get(shard) == me]
    free = [shard for shard in range(shard_count) if shard not in holders]
    if len(mine) > allotment:
        return ShardPlan(let_go=mine[-1], take=tuple(shard for shard in free if shard in free_long))
    # Processes start at different shards, so that two rarely try the same one.
    begin = zlib.crc32(me.encode()) % shard_count
    wanted = sorted(free, key=lambda shard: (shard - begin) % shard_count)[: allotment - len(mine)]
    return ShardPlan(take=(*wanted, *(shard for shard in free if shard in free_long and shard not in wanted)))


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a shard, and its address "host:port"."""

    name: str
    address: str


class ShardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The ``count`` leases of a ``daemon`` in a namespace, and this process's identity ``me`` and ``address``."""

    daemon: str
    namespace: str
    count: int
    me: str
    address: str
    times: LeaseTimes = LeaseTimes()


class Shards:
    """This process's share of the leases. ``others`` returns the identities of all running processes."""

    def __init__(
        self,
        cluster: Cluster,
        options: ShardOptions,
        *,
        on_won: Callable[[int], None],
        on_lost: Callable[[int], Awaitable[None]],
        others: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self.options = options
        self._cluster = cluster
        self._on_won = on_won
        self._on_lost = on_lost
        self._others = others
        self._clock = clock
        self._names = [shard_name(options.daemon, shard, options.count) for shard in range(options.count)]
        self._electors = {name: _elector(cluster, options, name, clock=clock) for name in self._names}
        self._foreign: dict[str, LeaseElector] = {}
        self._won: set[int] = set()
        self._free_since_s: dict[int, float] = {}
        # Earliest time to release another shard: one at a time, and not soon after taking over an abandoned one.
        self._let_go_at_s = -math.inf
        self._is_due = asyncio.Event()
        self._stirred = asyncio.Event()
        self._leases = Reflector(
            cluster,
            LEASE,
            options.namespace,
            label_selector=f"{SHARDS_LABEL}={options.daemon}",
            on_change=self._changed,
        )

    @property
    def owned(self) -> list[int]:
        """The shards that this process owns now, sorted."""
        return [shard for shard in sorted(self._won) if self.owns(shard)]

    def of(self, group: tuple[str, str]) -> int:
        """The shard of a group of revisions."""
        return shard_of(group, self.options.count)

    def owns(self, shard: int) -> bool:
        """Whether this process holds a shard now."""
        return shard in self._won and self._at(shard).is_held

    def check(self, shard: int) -> None:
        """Raise ``NotLeading`` unless this process holds a shard."""
        if not self.owns(shard):
            raise NotLeading(f"{self.options.namespace}/{self._names[shard]}")

    def owner(self, shard: int) -> Owner | None:
        """The other process that holds a shard; None if it is free or held by this process."""
        name = self._at(shard).present_holder
        lease = self._leases.cache.get((self.options.namespace, self._names[shard]))
        return None if name in {"", self.options.me} else Owner(name=name, address=_address_in(lease))

    def owners(self) -> dict[str, str]:
        """The addresses of all other holders, by name."""
        holders = (self.owner(shard) for shard in range(self.options.count))
        return {holder.name: holder.address for holder in holders if holder is not None and holder.address}

    async def run(self, stop: asyncio.Event) -> None:
        """Hold a share until ``stop`` is set, then release all shards. After setting ``stop``, call ``wake``."""
        async with supervise() as tasks:
            tasks.start_background(self._leases.run(), name=f"{self.options.daemon} leases")
            try:
                while not (self._leases.synced.is_set() or stop.is_set()):
                    await wait_for(self._leases.synced, until_s=now_s() + _SYNC_CHECK_S)
                while not stop.is_set():
                    self._is_due.clear()
                    until_s = await self._turn()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(_PAUSE_MIN_S, until_s - self._clock())):
                            await self._is_due.wait()
            finally:
                await asyncio.gather(*(self._release(shard) for shard in sorted(self._won)))

    async def changed(self, *, within_s: float) -> None:
        """Return when a lease changes, after which its shard may have another owner, or after ``within_s`` seconds."""
        self._stirred.clear()
        await wait_for(self._stirred, until_s=now_s() + within_s)

    def wake(self) -> None:
        """Plan again, because a process joined or left, or the daemon stops."""
        self._is_due.set()

    async def _turn(self) -> float:
        """Execute all due steps; return when to decide again."""
        steps = {shard: self._at(shard).decide() for shard in range(self.options.count)}
        for shard, step in steps.items():
            if step.action is LeaseAction.LOST:
                self._at(shard).step_down()
                await self._drop(shard)
        wanted = self._plan()
        calls: list[Awaitable[None]] = []
        if wanted.let_go is not None and self._clock() >= self._let_go_at_s:
            self._let_go_at_s = self._clock() + self.options.times.retry_period_s
            # Not renewed in the same step: of two writes to a lease the server rejects one, perhaps the release.
            del steps[wanted.let_go]
            calls.append(self._release(wanted.let_go))
        for shard, step in steps.items():
            if step.action is LeaseAction.RENEW:
                calls.append(self._at(shard).renew())
            elif step.action is LeaseAction.ACQUIRE and shard in wanted.take:
                calls.append(self._acquire(shard))
        await asyncio.gather(*calls)
        later = [self._at(shard).decide() for shard in range(self.options.count)]
        # An unwanted or failed step is decided again with the next step, at the latest after a quarter of the retry
        # period.
        then_s = self._clock() + self.options.times.retry_period_s / 4
        return min((step.until_s for step in later if step.action is LeaseAction.WAIT), default=then_s)

    def _plan(self) -> ShardPlan:
        at_s = self._clock()
        holder_by_shard = {shard: self._at(shard).present_holder for shard in range(self.options.count)}
        for shard, holder in holder_by_shard.items():
            if holder:
                self._free_since_s.pop(shard, None)
            else:
                self._free_since_s.setdefault(shard, at_s)
        if any(elector.present_holder for elector in self._foreign.values()):
            return ShardPlan()
        return plan(
            self.options.count,
            me=self.options.me,
            holders={shard: holder for shard, holder in holder_by_shard.items() if holder},
            others=self._others(),
            free_long={shard for shard in holder_by_shard if self._free_s(shard) >= self.options.times.duration_s},
        )

    def _free_s(self, shard: int) -> float:
        """Seconds for which a shard has been observed as free."""
        return self._clock() - self._free_since_s.get(shard, math.inf)

    async def _acquire(self, shard: int) -> None:
        elector, free_s = self._at(shard), self._free_s(shard)
        if await elector.acquire():
            if free_s >= self.options.times.duration_s:
                # The planned owner runs but does not acquire it, so it probably cannot.
                self._let_go_at_s = self._clock() + _KEEPING_DURATIONS * self.options.times.duration_s
            self._won.add(shard)
            self._on_won(shard)
        else:
            await elector.observe()

    async def _release(self, shard: int) -> None:
        if await self._drop(shard):
            await self._at(shard).release()
        else:
            # Writes in flight have until the expiry of the lease.
            self._at(shard).step_down()

    async def _drop(self, shard: int) -> bool:
        """Stop the work for a shard; return False if it took so long that other leases may expire."""
        if shard not in self._won:
            return True
        self._won.discard(shard)
        try:
            async with asyncio.timeout(self.options.times.renew_deadline_s * _REST_RATIO):
                await self._on_lost(shard)
        except TimeoutError:
            _log.warning("shards.restless", extra={"lease": self._names[shard]})
            return False
        return True

    def _changed(self, change: CacheChange) -> None:
        name = change.key[1]
        body = None if change.type is EventType.DELETED else change.new
        elector = self._electors.get(name) or self._foreign.get(name)
        if elector is None:
            elector = self._foreign[name] = _elector(self._cluster, self.options, name, clock=self._clock)
            _log.warning("shards.other_count", extra={"lease": name, "count": self.options.count})
        elector.update(body)
        self._is_due.set()
        self._stirred.set()

    def _at(self, shard: int) -> LeaseElector:
        return self._electors[self._names[shard]]


def _elector(cluster: Cluster, options: ShardOptions, name: str, *, clock: Callable[[], float]) -> LeaseElector:
    client = LeaseClient(
        cluster,
        LeaseName(namespace=options.namespace, name=name),
        labels={SHARDS_LABEL: options.daemon},
        annotations={REPLICA_ADDRESS_ANNOTATION: options.address},
    )
    return LeaseElector(client, options.me, times=options.times, clock=clock)


def _address_in(lease: Object | None) -> str:
    return str(nested(lease, "metadata", "annotations", REPLICA_ADDRESS_ANNOTATION) or "")
