"""Decide which leases each of several processes takes or gives up, so that every shard has an owner.

Input: the holders, the members and the shards that may be taken. Output: shards to take and at most one to give up. Each
process decides for itself from what it observes. The leases guarantee that no shard has two owners; this module makes sure
that every shard has one and that no process holds too many.

An allotment is the number of shards divided by the number of members, rounded up. Members are the holders of any shard, the
processes that announced themselves, and this process. A process below its allotment takes free shards. A process above it
gives up one shard at a time, because the next owner starts without history. A shard that stays free for long may be taken
by any process: work in the wrong place is better than no work.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping

import msgspec


class ShardWish(msgspec.Struct, frozen=True, kw_only=True):
    """Shards to take, in order of preference, and the one to give up; None for none."""

    take: tuple[int, ...] = ()
    let_go: int | None = None


def shard_of(group: tuple[str, str], shard_count: int) -> int:
    """The shard of a group of revisions, by namespace and name. All processes and versions compute the same."""
    return zlib.crc32("/".join(group).encode()) % shard_count


def shard_name(daemon: str, shard: int, shard_count: int) -> str:
    """The name of a shard's lease, as Knative's buckets are named: "autoscaler-bucket-00-of-10"."""
    return f"{daemon}-bucket-{shard:02d}-of-{shard_count:02d}"


def wish(
    shard_count: int,
    *,
    me: str,
    holders: Mapping[int, str],
    others: Iterable[str],
    free_long: Collection[int],
) -> ShardWish:
    """What to take and give up. ``holders`` have a lease that has not expired; ``others`` have announced themselves."""
    members = {me, *holders.values(), *others}
    allotment = -(-shard_count // len(members))
    mine = [shard for shard in range(shard_count) if holders.get(shard) == me]
    free = [shard for shard in range(shard_count) if shard not in holders]
    if len(mine) > allotment:
        return ShardWish(let_go=mine[-1], take=tuple(shard for shard in free if shard in free_long))
    # Each process starts at another shard, so that two at once rarely try the same one.
    begin = zlib.crc32(me.encode()) % shard_count
    wanted = sorted(free, key=lambda shard: (shard - begin) % shard_count)[: allotment - len(mine)]
    return ShardWish(take=(*wanted, *(shard for shard in free if shard in free_long and shard not in wanted)))
