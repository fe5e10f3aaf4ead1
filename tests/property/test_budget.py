"""Divisions of budgets for any claims."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serving.core.scaling.budget import Allowance, BudgetBook, BudgetClaim, BudgetDemand, BudgetTenant, allocate
from serving.core.settings.budgets import Budget, Budgets

NAMESPACES = ("batch", "shop")
SIZES = (1, 2, 5)
# No pod is larger than a budget; a larger pod would get no share and not affect others.
AMOUNTS = st.one_of(st.none(), st.integers(max(SIZES), 40))


@st.composite
def claims(draw: st.DrawFn) -> list[BudgetClaim]:
    """Up to eight revisions in two namespaces; revisions with requests want at least one pod."""
    results = []
    for number in range(draw(st.integers(1, 8))):
        floor = draw(st.integers(0, 2))
        has_load = draw(st.booleans())
        results.append(
            BudgetClaim(
                tenant=BudgetTenant(
                    key=(draw(st.sampled_from(NAMESPACES)), f"r{number}"), pod_bytes=draw(st.sampled_from(SIZES))
                ),
                demand=BudgetDemand(
                    floor=floor,
                    wanted=max(floor, int(has_load)) + draw(st.integers(0, 6)),
                    load=draw(st.floats(0, 30)),
                    has_load=has_load,
                    present=draw(st.integers(0, 4)),
                ),
                since_s=draw(st.floats(0, 100)),
            )
        )
    return results


def budgets(everything: int | None, shop: int | None, *, is_memory: bool) -> Budgets:
    amounts = {"": everything, "shop": shop}
    return Budgets(
        by_scope={
            scope: Budget(amount=amount, is_memory=is_memory) for scope, amount in amounts.items() if amount is not None
        }
    )


@given(claims(), AMOUNTS, AMOUNTS, st.booleans())
def test_no_budget_is_exceeded_and_no_share_exceeds_its_demand(
    budget_claims: list[BudgetClaim], everything: int | None, shop: int | None, is_memory: bool
) -> None:
    limits = budgets(everything, shop, is_memory=is_memory)
    division = allocate(budget_claims, limits, now_s=100.0)
    for budget_claim in budget_claims:
        assert 0 <= division.shares[budget_claim.tenant.key] <= budget_claim.demand.wanted
    for scope, budget in limits.by_scope.items():
        of = [budget_claim for budget_claim in budget_claims if not scope or budget_claim.tenant.key[0] == scope]
        used = sum(
            division.shares[budget_claim.tenant.key] * budget.price_of(budget_claim.tenant.pod_bytes)
            for budget_claim in of
        )
        assert used <= budget.amount


@given(claims(), AMOUNTS, AMOUNTS, st.booleans())
def test_revision_under_unpriced_budgets_gets_its_demand(
    budget_claims: list[BudgetClaim], everything: int | None, shop: int | None, is_memory: bool
) -> None:
    limits = budgets(everything, shop, is_memory=is_memory)
    division = allocate(budget_claims, limits, now_s=100.0)
    for budget_claim in budget_claims:
        if not any(scope in division.prices for scope, _ in limits.of(budget_claim.tenant.key[0])):
            assert division.shares[budget_claim.tenant.key] == budget_claim.demand.wanted


@given(claims(), st.integers(max(SIZES), 40), st.integers(0, 40), st.booleans())
def test_larger_budget_never_reduces_a_share(
    budget_claims: list[BudgetClaim], amount: int, more: int, is_memory: bool
) -> None:
    small, large = (
        allocate(budget_claims, budgets(number, None, is_memory=is_memory), now_s=100.0)
        for number in (amount, amount + more)
    )
    for budget_claim in budget_claims:
        assert small.shares[budget_claim.tenant.key] <= large.shares[budget_claim.tenant.key]


@given(claims(), st.integers(1, 40), st.floats(0, 30))
def test_more_load_never_reduces_a_share(budget_claims: list[BudgetClaim], amount: int, more: float) -> None:
    limits = budgets(amount, None, is_memory=False)
    first = budget_claims[0]
    demand = msgspec.structs.replace(first.demand, load=first.demand.load + more)
    busier = [msgspec.structs.replace(first, demand=demand), *budget_claims[1:]]
    before, after = (
        allocate(load_claims, limits, now_s=100.0).shares[first.tenant.key] for load_claims in (budget_claims, busier)
    )
    assert after >= before


@given(claims(), st.integers(1, 40))
def test_min_scale_precedes_the_first_pod_of_loaded_revisions(budget_claims: list[BudgetClaim], amount: int) -> None:
    division = allocate(budget_claims, budgets(amount, None, is_memory=False), now_s=100.0)
    floors = sum(budget_claim.demand.floor for budget_claim in budget_claims)
    first_pods = sum(budget_claim.demand.has_load and not budget_claim.demand.floor for budget_claim in budget_claims)
    if floors <= amount:
        assert all(
            division.shares[budget_claim.tenant.key] >= budget_claim.demand.floor for budget_claim in budget_claims
        )
    else:
        assert "" in division.floors
    if floors + first_pods <= amount:
        assert all(
            division.shares[budget_claim.tenant.key] for budget_claim in budget_claims if budget_claim.demand.has_load
        )


@given(st.integers(1, 12), st.integers(1, 5))
def test_every_loaded_revision_gets_a_pod_in_turn(revisions: int, amount: int) -> None:
    """With fewer pods than revisions, each revision gets a pod within the necessary number of turns."""
    book = BudgetBook(budgets(amount, None, is_memory=False))
    present = [0] * revisions
    served: set[int] = set()
    turns = -(-revisions // amount)
    for second in range(0, turns * 66, 2):
        for number in range(revisions):
            tenant = BudgetTenant(key=("shop", f"r{number}"), pod_bytes=1, existing=present[number])
            demand = BudgetDemand(
                wanted=3, floor=0, load=3.0, has_load=True, present=present[number], ready=present[number]
            )
            allowance = book.allow(tenant, demand, float(second))
            present[number] = demand.wanted if allowance is None else allowance.count
            if present[number]:
                served.add(number)
            assert sum(present) <= amount
    assert served == set(range(revisions))


@given(
    st.integers(1, 10),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=60),
)
def test_running_and_terminating_pods_never_exceed_the_budget(
    amount: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    """Each step is a decision about one revision; removed pods end later, one at a time."""
    book = BudgetBook(budgets(amount, None, is_memory=False))
    present, ending = [0] * 5, [0] * 5
    for at_s, (number, wanted, gone, has_load) in enumerate(steps):
        ending = [max(0, ending_count - gone) for ending_count in ending]
        tenant = BudgetTenant(
            key=("shop", f"r{number}"), pod_bytes=1, existing=present[number] + ending[number], ending=ending[number]
        )
        demand = BudgetDemand(
            wanted=wanted,
            floor=0,
            load=float(wanted),
            has_load=has_load,
            present=present[number],
            ready=present[number],
        )
        allowance: Allowance | None = book.allow(tenant, demand, float(at_s))
        count = wanted if allowance is None else allowance.count
        ending[number] += max(0, present[number] - count)
        present[number] = count
        assert sum(present) + sum(ending) <= amount
