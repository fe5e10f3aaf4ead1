"""Divisions of budgets, and the book of claims; ``tests/property/test_budget.py`` has the general properties."""

import math

import msgspec
import pytest

from serving.core.scaling.budget import (
    TURN_S,
    Allowance,
    AllowanceReason,
    BudgetBook,
    BudgetClaim,
    BudgetDemand,
    BudgetTenant,
    Division,
    allocate,
)
from serving.core.settings.budgets import read_budgets

NOW_S = 1000.0
MIB = 2**20


def new_claim(
    name: str, *, namespace: str = "shop", pod_mib: int = 100, since_s: float = NOW_S, **demand: object
) -> BudgetClaim:
    value = {"wanted": 20, "present": 0, "load": 1.0, "has_load": True} | demand
    return BudgetClaim(
        tenant=BudgetTenant(key=(namespace, name), pod_bytes=pod_mib * MIB),
        demand=msgspec.convert(value, BudgetDemand),
        since_s=since_s,
    )


def divided(budget: str, *claims: BudgetClaim) -> Division:
    return allocate(claims, read_budgets(budget), now_s=NOW_S)


def counts(budget: str, *claims: BudgetClaim) -> list[int]:
    return list(divided(budget, *claims).shares.values())


def test_pods_are_divided_by_load_with_price_of_next_pod() -> None:
    division = divided("10 pods", *(new_claim(f"r{load}", load=float(load)) for load in (12, 6, 2)))
    assert list(division.shares.values()) == [6, 3, 1]
    assert division.prices == {"": pytest.approx(12 / 7)}
    assert division.wanted == {"": 60}


def test_sufficient_budget_has_no_price() -> None:
    division = divided("10 pods", new_claim("a", wanted=4), new_claim("b", wanted=6))
    assert (list(division.shares.values()), division.prices) == ([4, 6], {})


def test_min_scale_precedes_load_and_is_divided_if_too_large() -> None:
    assert counts("5 pods", new_claim("a", floor=3, load=0.0, has_load=False, wanted=3), new_claim("b", load=50.0)) == [
        3,
        2,
    ]
    division = divided("6 pods", new_claim("a", floor=6, wanted=6), new_claim("b", floor=3, wanted=3), new_claim("c"))
    assert list(division.shares.values()) == [4, 2, 0]
    assert division.floors == {""}
    assert division.prices[""] == math.inf


def test_each_loaded_revision_gets_a_pod_before_any_gets_two() -> None:
    assert counts(
        "3 pods", new_claim("a", load=90.0), new_claim("b"), new_claim("c", load=0.1), new_claim("d", has_load=False)
    ) == [
        1,
        1,
        1,
        0,
    ]


def test_running_pod_has_20_percent_more_weight() -> None:
    assert counts("3 pods", new_claim("a", load=2.0), new_claim("b", load=1.9, present=2)) == [1, 2]
    assert counts("3 pods", new_claim("a", load=2.4), new_claim("b", load=1.9, present=2)) == [2, 1]


def test_first_pods_go_to_turns_then_longest_waits_then_overdue_turns() -> None:
    late, later = NOW_S - TURN_S, NOW_S - 2 * TURN_S
    waiting = (new_claim("new", since_s=NOW_S - 1), new_claim("old", since_s=NOW_S - 9))
    holders = (new_claim("in-turn", present=1, since_s=NOW_S - 5), new_claim("late", present=1, since_s=late))
    budget_claim = new_claim("later", present=1, since_s=later)
    order = ["in-turn", "old", "new", "late", "later"]
    for count in range(1, 6):
        shares = divided(f"{count} pods", *waiting, *holders, budget_claim).shares
        assert {name for (_, name), share in shares.items() if share} == set(order[:count])


def test_memory_is_divided_by_load_per_byte() -> None:
    assert counts("1000Mi", new_claim("a", load=4.0), new_claim("b", load=4.0, pod_mib=300)) == [5, 1]


def test_pod_that_does_not_fit_now_closes_budget_but_oversized_pod_does_not() -> None:
    assert counts("500Mi", new_claim("a", pod_mib=400), new_claim("b", pod_mib=200), new_claim("c", pod_mib=90)) == [
        1,
        0,
        0,
    ]
    assert counts("500Mi", new_claim("a", pod_mib=600), new_claim("b", wanted=2)) == [0, 2]


def test_full_namespace_budget_leaves_remainder_to_others() -> None:
    division = divided("10 pods, shop=2 pods", new_claim("a", load=90.0), new_claim("b", namespace="batch"))
    assert list(division.shares.values()) == [2, 8]
    assert set(division.prices) == {"", "shop"}
    assert counts("shop=2 pods", new_claim("a"), new_claim("b", namespace="batch")) == [2, 20]


def demand(wanted: int, present: int, **more: object) -> BudgetDemand:
    value = {"wanted": wanted, "present": present, "ready": present, "load": float(wanted), "has_load": True} | more
    return msgspec.convert(value, BudgetDemand)


class Book:
    """A book, and the pods of its revisions."""

    def __init__(self, budget: str) -> None:
        self.book = BudgetBook(read_budgets(budget))
        self.now_s = NOW_S

    def allow(self, name: str, wanted: int, present: int, ending: int = 0, **more: object) -> Allowance | None:
        tenant = BudgetTenant(key=("shop", name), pod_bytes=100 * MIB, existing=present + ending, ending=ending)
        self.now_s += 1
        return self.book.allow(tenant, demand(wanted, present, **more), self.now_s)


def test_no_budget_means_no_limit() -> None:
    assert Book("").allow("a", 99, 0) is None
    assert Book("batch=1 pod").allow("a", 99, 0) is None


def test_granted_and_ending_pods_count_in_budget() -> None:
    book = Book("10 pods")
    assert book.allow("a", 8, 0) is None
    allowance = book.allow("b", 8, 0)
    assert allowance is not None
    assert (allowance.count, allowance.reason, allowance.budget, allowance.all_wanted) == (
        2,
        AllowanceReason.ENDING,
        "10 pods",
        16,
    )
    assert allowance.recheck_in_s is not None
    less = book.allow("a", 8, 8)
    assert less is not None
    assert (less.count, less.reason, less.recheck_in_s) == (5, AllowanceReason.SHARE, None)
    again = book.allow("b", 8, 2)
    assert again is not None
    assert again.count == 2
    book.allow("a", 8, 5, 3)
    assert getattr(book.allow("b", 8, 2), "count", None) == 2
    book.allow("a", 8, 5, 1)
    assert getattr(book.allow("b", 8, 2), "count", None) == 4
    book.allow("a", 8, 5, 0)
    assert getattr(book.allow("b", 8, 4), "count", None) == 5


def test_pods_counted_in_without_demand_use_budget() -> None:
    book = Book("10 pods")
    book.book.count_in(BudgetTenant(key=("shop", "other"), existing=7), present=7)
    assert getattr(book.allow("a", 9, 0), "count", None) == 3
    book.book.forget(("shop", "other"))
    assert book.allow("a", 9, 3) is None
    book.book.forget(("shop", "unknown"))


def test_division_is_cached_briefly() -> None:
    book, tenant = BudgetBook(read_budgets("2 pods")), BudgetTenant(key=("shop", "a"))
    results = []
    for at_s in (0.0, 0.1, 0.3):
        book.allow(tenant, demand(4, 2), at_s)
        results.append(book._division)
    assert results[0] is results[1]
    assert results[1] is not results[2]


def test_changed_budget_applies_to_present_pods() -> None:
    book = Book("10 pods")
    assert book.allow("a", 8, 8) is None
    book.book.reconfigure(read_budgets("shop=5 pods"))
    allowance = book.allow("a", 8, 8)
    assert allowance is not None
    assert (allowance.count, allowance.budget) == (5, "5 pods of shop")
    book.book.reconfigure(read_budgets("shop=5 pods"))
    assert getattr(book.allow("b", 1, 0), "count", None) == 0


def test_allowance_has_reason_of_each_limit() -> None:
    book = Book("2 pods")
    book.allow("a", 1, 1)
    book.allow("b", 1, 1)
    waiting = book.allow("c", 1, 0)
    assert waiting is not None
    assert (waiting.count, waiting.reason) == (0, AllowanceReason.TURN)
    idle = book.allow("d", 1, 0, has_load=False)
    assert idle is not None
    assert idle.reason is AllowanceReason.SHARE
    floors = Book("2 pods").allow("a", 3, 0, floor=3)
    assert floors is not None
    assert (floors.count, floors.reason) == (2, AllowanceReason.FLOORS)
    large = Book("50Mi").allow("a", 1, 0)
    assert large is not None
    assert (large.count, large.reason) == (0, AllowanceReason.TOO_LARGE)
    shared = Book("2 pods")
    shared.allow("a", 1, 1, 1)
    ending = shared.allow("b", 1, 0)
    assert ending is not None
    assert (ending.count, ending.reason) == (0, AllowanceReason.ENDING)
    # No budget: MemoryShortage gives the last reason.
    reasons = {allowance.reason for allowance in (waiting, idle, floors, large, ending)}
    assert reasons == set(AllowanceReason) - {AllowanceReason.MEMORY}


def test_free_place_is_granted_to_longest_wait() -> None:
    book = Book("3 pods")
    assert book.allow("a", 3, 3) is None
    for name in ("b", "c"):
        assert getattr(book.allow(name, 2, 0), "count", None) == 0
    assert getattr(book.allow("a", 3, 3), "count", None) == 1
    book.allow("a", 3, 1, 1)
    assert getattr(book.allow("c", 2, 0), "reason", None) is AllowanceReason.ENDING
    assert getattr(book.allow("a", 3, 1, 1), "count", None) == 1
    assert getattr(book.allow("b", 2, 0), "count", None) == 1
    book.allow("a", 3, 1)
    assert getattr(book.allow("c", 2, 0), "count", None) == 1


def test_unwanted_pod_is_removed_at_once_if_others_wait() -> None:
    book = Book("1 pod")
    assert book.allow("a", 0, 1) is None
    assert getattr(book.allow("b", 1, 0), "count", None) == 0
    assert getattr(book.allow("a", 0, 1), "count", None) == 0


def test_turn_begins_when_pod_is_ready_and_ends_for_waiting_revision() -> None:
    book = Book("1 pod")
    assert book.allow("a", 1, 1, ready=0) is None
    for _ in range(int(TURN_S)):
        book.allow("a", 1, 1, ready=0)
        assert getattr(book.allow("b", 1, 0), "count", None) == 0
    assert book.allow("a", 1, 1) is None
    for _ in range(int(TURN_S / 2) - 1):
        assert book.allow("a", 1, 1) is None
        assert getattr(book.allow("b", 1, 0), "count", None) == 0
    assert getattr(book.allow("a", 1, 1), "count", None) == 0
    assert getattr(book.allow("b", 1, 0), "reason", None) is AllowanceReason.ENDING
    book.allow("a", 1, 0)
    assert book.allow("b", 1, 0) is None
