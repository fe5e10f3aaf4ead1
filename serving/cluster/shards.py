"""Holding several leases, a fair part of the work: who wants which is ``allotment``, how one is held ``candidate``.

One watch brings all leases, so that everybody knows who owns what within milliseconds. ``on_won`` is told a shard when it
is ours, and must not wait; ``on_lost`` is awaited when it is not any more, and before it is let go: what it leaves on its
way would land beside what the next owner writes. ``owns`` and ``check`` ask the clock, so that they hold for a process
that was frozen before ``on_lost`` has had its turn.

Leases of another number of shards are the same work cut otherwise: while anybody holds one of those, none is taken.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from serving.aio.clock import now_s, steady_s
from serving.aio.periodic import wait_for
from serving.cluster.allotment import ShardWish, shard_name, shard_of, wish
from serving.cluster.election import LeaseAction, LeaseTimes
from serving.cluster.elector import LeaseElector
from serving.cluster.kinds import LEASE
from serving.cluster.lease import LeaseClient, LeaseName
from serving.cluster.port import Cluster, EventType
from serving.cluster.reflector import CacheChange, Reflector
from serving.model.errors import NotLeading
from serving.model.objects import Object, nested

__all__ = ["Owner", "ShardOptions", "Shards"]

_log = logging.getLogger(__name__)
_LABEL = "serving.dev/shards-of"
_ADDRESS = "serving.dev/address"
# Part of the renew deadline for which one shard may keep the renewals of the others waiting.
_REST_RATIO = 0.3
# Durations of a lease for which somebody keeps what others should have and did not take.
_KEEPING_DURATIONS = 8
# Less than this is not worth a turn, and may be less than a clock tells apart.
_PAUSE_MIN_S = 0.001
# Between two looks whether to stop, while the leases have not been seen yet.
_SYNC_LOOK_S = 0.5


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a shard, and where it listens, as "host:port"."""

    name: str
    address: str


class ShardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is shared out, and by whom: ``count`` leases of a ``daemon`` in a namespace; ``me``, who listens at ``address``."""

    daemon: str
    namespace: str
    count: int
    me: str
    address: str
    times: LeaseTimes = LeaseTimes()


class Shards:
    """Our part of the leases. ``others`` gives the names of those that are there, whether they hold any or none."""

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
        self._on_won, self._on_lost, self._others = on_won, on_lost, others
        self._clock = clock
        self._names = [shard_name(options.daemon, shard, options.count) for shard in range(options.count)]
        self._electors = {name: _elector(cluster, options, name, clock=clock) for name in self._names}
        self._foreign: dict[str, LeaseElector] = {}
        self._won: set[int] = set()
        self._free_since_s: dict[int, float] = {}
        # Not before: one at a time, and what nobody else took not for long.
        self._let_go_at_s = -math.inf
        self._news, self._stirred = asyncio.Event(), asyncio.Event()
        self._leases = Reflector(cluster, LEASE, options.namespace, label_selector=f"{_LABEL}={options.daemon}")
        self._leases.on_change(self._changed)

    def __repr__(self) -> str:
        return f"Shards({self.options.daemon}, {len(self._won)} of {self.options.count})"

    @property
    def synced(self) -> asyncio.Event:
        """Set once all leases have been seen."""
        return self._leases.synced

    @property
    def held(self) -> list[int]:
        """The shards that are ours at this moment."""
        return [shard for shard in sorted(self._won) if self.owns(shard)]

    def of(self, group: tuple[str, str]) -> int:
        """The shard of what belongs together."""
        return shard_of(group, self.options.count)

    def owns(self, shard: int) -> bool:
        """Whether a shard is ours at this moment."""
        return shard in self._won and self._at(shard).is_held

    def check(self, shard: int) -> None:
        """Nothing while a shard is ours. Raises ``NotLeading``."""
        if not self.owns(shard):
            raise NotLeading(f"{self.options.namespace}/{self._names[shard]}")

    def owner(self, shard: int) -> Owner | None:
        """Who else has a shard; None if nobody has, or we."""
        name = self._at(shard).present_holder
        lease = self._leases.cache.get((self.options.namespace, self._names[shard]))
        return None if name in {"", self.options.me} else Owner(name=name, address=_address_in(lease))

    def owners(self) -> dict[str, str]:
        """The addresses of all others who have anything, by name."""
        found = (self.owner(shard) for shard in range(self.options.count))
        return {one.name: one.address for one in found if one is not None and one.address}

    async def run(self, stop: asyncio.Event) -> None:
        """Hold our part until ``stop`` is set, which ``wake`` hastens; then let go of all."""
        following = asyncio.create_task(self._leases.run(), name=f"{self.options.daemon} leases")
        try:
            while not (self._leases.synced.is_set() or stop.is_set()):
                await wait_for(self._leases.synced, until_s=now_s() + _SYNC_LOOK_S)
            while not stop.is_set():
                self._news.clear()
                until_s = await self._turn()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(_PAUSE_MIN_S, until_s - self._clock())):
                        await self._news.wait()
        finally:
            await asyncio.gather(*(self._let_go(shard) for shard in sorted(self._won)))
            following.cancel()

    async def changed(self, *, within_s: float) -> None:
        """Wait until a lease has changed, so that somebody else may own something; no longer than so many seconds."""
        self._stirred.clear()
        await wait_for(self._stirred, until_s=now_s() + within_s)

    def wake(self) -> None:
        """Look again: somebody has come or gone, or it is time to stop."""
        self._news.set()

    async def _turn(self) -> float:
        """Do what is due; when to look again."""
        steps = {shard: self._at(shard).decide() for shard in range(self.options.count)}
        for shard, step in steps.items():
            if step.action is LeaseAction.LOST:
                self._at(shard).step_down()
                await self._drop(shard)
        wanted = self._wish()
        calls: list[Awaitable[None]] = []
        for shard, step in steps.items():
            if step.action is LeaseAction.RENEW:
                calls.append(self._at(shard).renew())
            elif step.action is LeaseAction.ACQUIRE and shard in wanted.take:
                calls.append(self._acquire(shard))
        if wanted.let_go is not None and self._clock() >= self._let_go_at_s:
            self._let_go_at_s = self._clock() + self.options.times.retry_period_s
            calls.append(self._let_go(wanted.let_go))
        await asyncio.gather(*calls)
        later = [self._at(shard).decide() for shard in range(self.options.count)]
        # What could be done now and was not wanted, or came to nothing, is looked at again with the rest, or then.
        then_s = self._clock() + self.options.times.retry_period_s / 4
        return min((one.until_s for one in later if one.action is LeaseAction.WAIT), default=then_s)

    def _wish(self) -> ShardWish:
        at_s = self._clock()
        found = {shard: self._at(shard).present_holder for shard in range(self.options.count)}
        for shard, holder in found.items():
            if holder:
                self._free_since_s.pop(shard, None)
            else:
                self._free_since_s.setdefault(shard, at_s)
        if any(one.present_holder for one in self._foreign.values()):
            return ShardWish()
        return wish(
            self.options.count,
            me=self.options.me,
            holders={shard: holder for shard, holder in found.items() if holder},
            others=self._others(),
            free_long={shard for shard in found if self._free_s(shard) >= self.options.times.duration_s},
        )

    def _free_s(self, shard: int) -> float:
        """For how long a shard has been seen to be nobody's."""
        return self._clock() - self._free_since_s.get(shard, math.inf)

    async def _acquire(self, shard: int) -> None:
        one, free_s = self._at(shard), self._free_s(shard)
        if await one.acquire():
            if free_s >= self.options.times.duration_s:
                # Whoever should have it is there and does not take it: it cannot, and will not soon.
                self._let_go_at_s = self._clock() + _KEEPING_DURATIONS * self.options.times.duration_s
            self._won.add(shard)
            self._on_won(shard)
        else:
            await one.look()

    async def _let_go(self, shard: int) -> None:
        if await self._drop(shard):
            await self._at(shard).release()
        else:
            # What is still on its way has as long as the lease that is left to run out.
            self._at(shard).step_down()

    async def _drop(self, shard: int) -> bool:
        """Stop the work on a shard; whether that has come to rest, for which the other shards do not wait for long."""
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
        one = self._electors.get(name) or self._foreign.get(name)
        if one is None:
            one = self._foreign[name] = _elector(self._cluster, self.options, name, clock=self._clock)
            _log.warning("shards.other_count", extra={"lease": name, "count": self.options.count})
        one.take(body)
        self._news.set()
        self._stirred.set()

    def _at(self, shard: int) -> LeaseElector:
        return self._electors[self._names[shard]]


def _elector(cluster: Cluster, options: ShardOptions, name: str, *, clock: Callable[[], float]) -> LeaseElector:
    """The elector of one lease."""
    client = LeaseClient(
        cluster,
        LeaseName(namespace=options.namespace, name=name),
        labels={_LABEL: options.daemon},
        annotations={_ADDRESS: options.address},
    )
    return LeaseElector(client, options.me, times=options.times, clock=clock)


def _address_in(lease: Object | None) -> str:
    """The address that the holder of a lease wrote into it; "" without one."""
    return str(nested(lease, "metadata", "annotations", _ADDRESS) or "")
