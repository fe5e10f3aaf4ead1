"""Who of several processes should hold which of several leases: shards of the work.

Input: who holds what, who is there, and which leases may be taken. Output: which to take and which to let go. Each process
decides for itself by what it sees, and none of them is in charge: the leases see to it that nothing is held twice, this
only that all is held and by nobody in excess.

An allotment is the number of shards divided by the number of members, rounded up. Members are those who hold anything,
those who have made themselves known, and we. Who has less takes what is free; who has more lets go of one at a time, because
whoever takes a shard over has to learn about it anew. What is free for long is taken by anybody: work that is done by the
wrong one is better than work that nobody does.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping

import msgspec

__all__ = ["ShardWish", "shard_name", "shard_of", "wish"]


class ShardWish(msgspec.Struct, frozen=True, kw_only=True):
    """Shards to take, most wanted first, and the one to let go of, None for none."""

    take: tuple[int, ...] = ()
    let_go: int | None = None


def shard_of(group: tuple[str, str], shard_count: int) -> int:
    """The shard of what belongs together, by namespace and name: the same for all processes and versions."""
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
    """What to take and let go. ``holders`` are those whose lease has not run out; ``others`` have made themselves known."""
    members = {me, *holders.values(), *others}
    allotment = -(-shard_count // len(members))
    mine = [shard for shard in range(shard_count) if holders.get(shard) == me]
    free = [shard for shard in range(shard_count) if shard not in holders]
    if len(mine) > allotment:
        return ShardWish(let_go=mine[-1], take=tuple(shard for shard in free if shard in free_long))
    # Where each begins differs, so that two who take at once rarely take the same.
    begin = zlib.crc32(me.encode()) % shard_count
    wanted = sorted(free, key=lambda shard: (shard - begin) % shard_count)[: allotment - len(mine)]
    return ShardWish(take=(*wanted, *(shard for shard in free if shard in free_long and shard not in wanted)))
