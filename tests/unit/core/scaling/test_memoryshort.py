"""Removal of dormant pods while memory is short, and restoration of their places."""

import pytest

from serving.core.scaling.budget import AllowanceReason, BudgetDemand
from serving.core.scaling.memoryshort import DormantPod, MemoryReading, MemoryShortage
from serving.core.settings.dormancy import MemorySettings

MIB = 2**20
SETTINGS = MemorySettings(available_min_ratio=0.05, stalled_max_ratio=0.1)
SHORT = MemoryReading(total_bytes=16000 * MIB, available_bytes=760 * MIB)
FREE = MemoryReading(total_bytes=16000 * MIB, available_bytes=1600 * MIB)
STALLED = MemoryReading(total_bytes=16000 * MIB, available_bytes=9000 * MIB, stalled_ratio=0.25)
NOW_S = 1000.0
A, B = ("default", "a-00001"), ("default", "b-00001")


def pod(
    name: str, used_s: float, *, key: tuple[str, str] = A, scale: int = 3, memory_bytes: int = 200 * MIB
) -> DormantPod:
    return DormantPod(key=key, name=name, used_s=used_s, scale=scale, memory_bytes=memory_bytes)


def after(reading: MemoryReading, *pods: DormantPod) -> MemoryShortage:
    shortage = MemoryShortage()
    shortage.update(reading, pods, settings=SETTINGS, now_s=NOW_S)
    return shortage


def wants(wanted: int, *, present: int = 3, in_use: int = 0) -> BudgetDemand:
    return BudgetDemand(wanted=wanted, present=present, in_use=in_use)


def count(shortage: MemoryShortage, demand: BudgetDemand, key: tuple[str, str] = A) -> int | None:
    allowance = shortage.allow(key, demand)
    return None if allowance is None else allowance.count


def test_least_recently_used_pod_of_all_revisions_is_removed_first() -> None:
    shortage = after(SHORT, pod("new", 900.0), pod("old", 100.0, key=B, scale=1), pod("middle", 500.0))
    allowance = shortage.allow(B, wants(1, present=1))
    assert allowance is not None
    assert (allowance.count, allowance.wanted, allowance.reason) == (0, 1, AllowanceReason.MEMORY)
    assert allowance.budget == (
        "760 MiB of 16000 are available, less than memory.available-min 5 %; old, dormant, was last used 900 s ago"
    )
    assert shortage.allow(A, wants(3)) is None
    assert "1 held" in repr(shortage)
    assert shortage.limited_keys


def test_as_many_pods_are_removed_as_free_missing_memory() -> None:
    small = [pod(f"p{place}", float(place), memory_bytes=15 * MIB) for place in range(5)]
    # 40 MiB are missing: three of 15.
    shortage = MemoryShortage()
    assert shortage.update(SHORT, small, settings=SETTINGS, now_s=NOW_S) == [A, A, A]
    assert count(shortage, wants(3)) == 0


def test_further_pods_are_removed_after_10_s_or_3_s_after_scale_down() -> None:
    pods = [pod("a", 1.0), pod("b", 2.0), pod("c", 3.0)]
    shortage = MemoryShortage()
    assert shortage.update(SHORT, pods, settings=SETTINGS, now_s=NOW_S) == [A]
    # The first pod hands off for up to ten seconds; then others are removed, and it is not counted again.
    assert shortage.update(SHORT, pods, settings=SETTINGS, now_s=NOW_S + 9.9) == []
    assert shortage.update(SHORT, pods, settings=SETTINGS, now_s=NOW_S + 10.0) == [A]
    assert count(shortage, wants(3)) == 1
    # The scale is reduced, and both pods are gone.
    remaining = [pod("c", 3.0, scale=1)]
    assert shortage.update(SHORT, remaining, settings=SETTINGS, now_s=NOW_S + 12.9) == []
    assert shortage.update(SHORT, remaining, settings=SETTINGS, now_s=NOW_S + 13.0) == [A]
    assert count(shortage, wants(3)) == 0


def test_stalled_memory_removes_one_pod() -> None:
    shortage = after(STALLED, pod("a", 1.0), pod("b", 2.0))
    allowance = shortage.allow(A, wants(3))
    assert allowance is not None
    assert allowance.count == 2
    assert "waited for memory 25% of the last 10 s, more than memory.stalled-max 10 %" in allowance.budget


@pytest.mark.parametrize("reading", [FREE, STALLED])
def test_sufficient_memory_or_disabled_limits_remove_no_pod(reading: MemoryReading) -> None:
    shortage = MemoryShortage()
    off = MemorySettings(available_min_ratio=0.0, stalled_max_ratio=0.0)
    assert shortage.update(reading, [pod("a", 1.0)], settings=off, now_s=NOW_S) == []
    assert not shortage.limited_keys


def test_request_that_needs_removed_pod_restores_it() -> None:
    shortage = after(SHORT, pod("a", 1.0))
    assert count(shortage, wants(3, in_use=2)) == 2
    assert shortage.allow(A, wants(3, in_use=3)) is None
    assert not shortage.limited_keys


def test_restored_pod_can_be_removed_again() -> None:
    shortage = after(SHORT, pod("a", 1.0))
    shortage.allow(A, wants(3, in_use=3))
    assert shortage.update(SHORT, [pod("a", 1.0)], settings=SETTINGS, now_s=NOW_S + 3.0) == [A]


def test_pod_used_within_3_s_is_not_removed() -> None:
    assert not after(SHORT, pod("a", NOW_S - 2.9)).limited_keys
    assert after(SHORT, pod("a", NOW_S - 3.0)).limited_keys


def test_demand_within_remaining_pods_is_not_limited() -> None:
    shortage = after(SHORT, pod("a", 1.0))
    assert shortage.allow(A, wants(2)) is None
    shortage = after(SHORT, pod("a", 1.0, scale=1))
    # Its last pod is removed at once; at 0 there is none to remove.
    assert count(shortage, wants(0, present=1)) == 0
    assert shortage.allow(A, wants(0, present=0)) is None
    assert count(shortage, wants(1, present=0)) == 0


def test_places_are_restored_one_by_one_after_60_s_of_free_memory() -> None:
    shortage = MemoryShortage()
    shortage.update(SHORT, [pod("a", 1.0, memory_bytes=1), pod("b", 2.0, key=B)], settings=SETTINGS, now_s=NOW_S)
    assert [count(shortage, wants(3)), count(shortage, wants(3), B)] == [2, 2]
    between = MemoryReading(total_bytes=16000 * MIB, available_bytes=1500 * MIB)

    def at(passed_s: float, reading: MemoryReading = FREE) -> list[tuple[str, str]]:
        return shortage.update(reading, [], settings=SETTINGS, now_s=NOW_S + passed_s)

    assert at(0.0) == []
    assert at(50.0) == []
    # Not free enough: the minute begins again.
    assert at(59.0, between) == []
    assert at(61.0) == []
    assert at(120.0) == []
    assert at(121.0) == [A]
    assert at(122.0) == [B]
    assert at(123.0) == []


def test_deleted_revision_is_dropped() -> None:
    shortage = after(SHORT, pod("a", 1.0))
    shortage.forget(A)
    shortage.forget(B)
    assert not shortage.limited_keys
