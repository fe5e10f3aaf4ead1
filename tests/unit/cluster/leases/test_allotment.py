from hypothesis import given
from hypothesis import strategies as st

from serving.cluster.leases.allotment import ShardWish, shard_name, shard_of, wish


def test_a_shard_is_the_same_everywhere_and_for_ever() -> None:
    # The numbers are promised: two versions at work side by side must agree.
    assert [shard_of(("default", name), 10) for name in ("hello", "world", "a-00001")] == [5, 8, 2]
    assert shard_of(("default", "hello"), 1) == 0


def test_shards_are_evenly_filled() -> None:
    counts = [0] * 10
    for number in range(10_000):
        counts[shard_of(("space", f"service-{number:05d}"), 10)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_the_names_of_leases_are_those_of_knatives_buckets() -> None:
    assert shard_name("autoscaler", 0, 1) == "autoscaler-bucket-00-of-01"
    assert shard_name("autoscaler", 7, 10) == "autoscaler-bucket-07-of-10"


def test_who_is_alone_takes_all() -> None:
    found = wish(4, me="a", holders={}, others=(), free_long=())
    assert sorted(found.take) == [0, 1, 2, 3]


def test_what_is_free_is_shared_with_those_who_are_known() -> None:
    found = wish(4, me="a", holders={}, others=("b",), free_long=())
    assert len(found.take) == 2
    found = wish(4, me="a", holders={0: "b", 1: "b", 2: "a"}, others=(), free_long=())
    assert found == ShardWish(take=(3,))


def test_who_has_more_than_an_allotment_lets_go_of_one() -> None:
    assert wish(4, me="a", holders=dict.fromkeys(range(4), "a"), others=("b",), free_long=()) == ShardWish(let_go=3)
    assert wish(4, me="a", holders=dict.fromkeys(range(2), "a"), others=("b",), free_long=()).let_go is None


def test_an_allotment_is_rounded_up_so_that_nothing_is_left() -> None:
    assert wish(3, me="a", holders={0: "a", 1: "a"}, others=("b",), free_long=()) == ShardWish()
    assert wish(3, me="b", holders={0: "a", 1: "a"}, others=(), free_long=()) == ShardWish(take=(2,))


def test_what_is_free_for_long_is_taken_by_anybody() -> None:
    found = wish(4, me="a", holders={0: "a", 1: "a"}, others=("b",), free_long={2, 3})
    assert found == ShardWish(take=(2, 3))
    found = wish(4, me="a", holders=dict.fromkeys((0, 1, 2), "a"), others=("b",), free_long={3})
    assert found == ShardWish(take=(3,), let_go=2)


def test_more_members_than_shards_is_no_trouble() -> None:
    assert wish(1, me="c", holders={0: "a"}, others=("b",), free_long=()) == ShardWish()


@given(
    shard_count=st.integers(1, 12),
    names=st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
    data=st.data(),
)
def test_whoever_begins_with_what_all_comes_to_be_held_in_fair_parts(
    shard_count: int, names: list[str], data: st.DataObject
) -> None:
    holders = data.draw(st.dictionaries(st.integers(0, shard_count - 1), st.sampled_from(names), max_size=shard_count))
    for _ in range(4 * shard_count * len(names)):
        for me in names:
            found = wish(shard_count, me=me, holders=holders, others=names, free_long=())
            if found.let_go is not None:
                assert holders.pop(found.let_go) == me
            for shard in found.take:
                assert shard not in holders
                holders[shard] = me
    allotment = -(-shard_count // len(names))
    assert set(holders) == set(range(shard_count))
    assert max(list(holders.values()).count(name) for name in names) <= allotment
