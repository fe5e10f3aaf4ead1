"""Divides a budget of pods or memory among revisions, such as "at most 20 pods" in total or per namespace.

``allocate`` is pure: it takes claims of revisions, and returns the pods of each. Pods are granted one after the other,
until the next one does not fit:

1. pods of min-scale, or of the initial scale of a new revision;
2. the first pod of each revision with requests, in turns if there are not enough;
3. all others by worth. The worth of a revision's n-th pod is load / n, the load per pod with n pods, in units of the
   target. The worth of the first pod that does not fit is the price of the budget.

The order does not depend on the size of the budget, so that no revision loses a pod by a larger budget. Under a budget
of memory the worth is per byte. ``BudgetBook`` stores the claims, and grants a pod only after another one has ended.
"""

import enum
import heapq
import math
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec

from serving.core.model.knative import RevisionKey
from serving.core.settings.budgets import Budgets, Limits

TURN_S = 60.0
"""Shortest time for which a revision keeps its first pod while others wait, in seconds since the pod was ready."""

# Worth of an existing pod relative to a new one, so that noise in the load moves no pods.
_PRESENT_RATIO = 1.2
# How long a division is used, in seconds; a revision missing in it triggers a new division.
_DIVISION_VALID_S = 0.25
# Time until a revision checks again for the ending pods of others.
_RECHECK_S = 0.5
# Ranks of pods; the lowest is granted first.
_FLOOR, _FIRST_POD, _BY_WORTH = range(3)
# Above every time: overdue turns sort after all waiting revisions.
_AFTER_ALL = 1e18

_Bid = tuple[int, float, RevisionKey, int]


class BudgetDemand(msgspec.Struct, frozen=True, kw_only=True):
    """A revision's demand without a budget: ``wanted`` pods, its ``present`` scale, and its ``ready`` pods.

    ``floor`` is min-scale or the initial scale. ``load`` is in units of the target per pod. ``has_load``: the revision
    has requests. ``in_use`` is the number of pods for the requests in flight now.
    """

    wanted: int
    present: int
    ready: int = 0
    floor: int = 0
    load: float = 0.0
    has_load: bool = False
    in_use: int = 0


class BudgetTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A revision under budgets. ``pod_bytes`` is the memory that one of its pods requests.

    ``existing`` counts all of its pods, ``ending`` those that are terminating.
    """

    key: RevisionKey
    pod_bytes: int = 0
    existing: int = 0
    ending: int = 0


class BudgetClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A revision's claim to pods under budgets.

    ``since_s`` is when the revision began to wait. Once it has a ready pod, ``since_s`` is the beginning of its turn,
    the time for which it may keep its first pod. ``granted`` is the last allowed scale, which may not be written yet.
    """

    tenant: BudgetTenant
    demand: BudgetDemand
    since_s: float = 0.0
    granted: int = 0

    @property
    def used(self) -> int:
        """Pods that the revision has or may have at any moment."""
        scale = max(self.demand.present, self.granted)
        return max(self.tenant.existing, self.tenant.ending + scale)


class Division(msgspec.Struct, frozen=True, kw_only=True):
    """How the budgets are divided. ``shares`` are the allowed pods by revision.

    The other fields are by scope: a namespace, or "" for the whole system. ``wanted`` are the pods that all revisions
    want. ``prices`` are the worth of the first pod that did not fit: the load per pod, as a multiple of its target,
    that the revision would have with this pod. ``floors`` are the scopes too small for min-scale.
    """

    shares: dict[RevisionKey, int]
    prices: dict[str, float]
    wanted: dict[str, int]
    floors: set[str]


class AllowanceReason(enum.StrEnum):
    """Why a budget allows a revision fewer pods than desired.

    share: the revision has its share of the budget. ending: terminating pods of others still use it. turn: the revision
    waits for its turn to have a pod. floors: the budget is smaller than the sum of all min-scales. too large: one pod
    alone exceeds it.
    """

    SHARE = "share"
    ENDING = "ending"
    TURN = "turn"
    FLOORS = "floors"
    TOO_LARGE = "too large"
    MEMORY = "memory"
    """The machine is short of memory (``core/scaling/memoryshort.py``)."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """The ``count`` pods that a limiting budget allows a revision, of the ``wanted`` ones.

    ``budget`` is the text of the budget, or the scarce resource. ``all_wanted`` is the number of pods that all
    revisions under the budget want. ``price`` is the worth of the first pod that does not fit (``Division``). The
    revision is decided again after ``recheck_in_s`` seconds.
    """

    count: int
    wanted: int
    reason: AllowanceReason
    budget: str
    all_wanted: int = 0
    price: float = 0.0
    recheck_in_s: float | None = None


UNLIMITED = Allowance(count=sys.maxsize, wanted=0, reason=AllowanceReason.SHARE, budget="")


def allocate(claims: Sequence[BudgetClaim], budgets: Budgets, *, now_s: float) -> Division:
    """Divide the budgets among the claims.

    Example: three revisions with loads of 12, 6 and 2 share 10 pods. They get 6, 3 and 1, so that each pod has twice
    its target. An eleventh pod would go to the first revision, whose seven pods would have 1.7 times their target: 1.7
    is the price.
    """
    remaining = {scope: budget.amount for claim in claims for scope, budget in budgets.of(claim.tenant.key[0])}
    wanted: Counter[str] = Counter()
    division = Division(shares={claim.tenant.key: 0 for claim in claims}, prices={}, wanted=wanted, floors=set())
    bids: list[_Bid] = []
    for place, claim in enumerate(claims):
        limits = budgets.of(claim.tenant.key[0])
        wanted.update({scope: claim.demand.wanted for scope, _ in limits})
        # A pod that can never fit must not block other pods.
        if all(budget.price_of(claim.tenant.pod_bytes) <= budget.amount for _, budget in limits):
            bids += _bids(claim, 0, place=place, limits=limits, now_s=now_s)
    heapq.heapify(bids)
    while bids:
        rank, order, key, place = heapq.heappop(bids)
        claim, limits = claims[place], budgets.of(key[0])
        if any(scope in division.prices for scope, _ in limits):
            continue
        sizes = {scope: budget.price_of(claim.tenant.pod_bytes) for scope, budget in limits}
        full = [scope for scope, size in sizes.items() if size > remaining[scope]]
        for scope in full:
            # The scope closes, so that smaller later pods do not delay this claim forever.
            division.prices[scope] = -order * sizes[limits[0][0]] if rank == _BY_WORTH else math.inf
            if rank == _FLOOR:
                division.floors.add(scope)
        if full:
            continue
        for scope, size in sizes.items():
            remaining[scope] -= size
        division.shares[key] += 1
        for bid in _bids(claim, division.shares[key], place=place, limits=limits, now_s=now_s):
            heapq.heappush(bids, bid)
    return division


def _bids(claim: BudgetClaim, have: int, *, place: int, limits: Limits, now_s: float) -> list[_Bid]:
    """The bid of a claim for its next pod, if any. Its worth is per unit of the scarcest budget that the pod uses.

    ``have`` is the number of pods that it has already got. ``place`` is the position of the claim in the list of
    claims.
    """
    demand, key = claim.demand, claim.tenant.key
    size = limits[0][1].price_of(claim.tenant.pod_bytes) if limits else 1
    if have < demand.floor:
        return [(_FLOOR, -demand.floor / (have + 1) / size, key, place)]
    if have >= demand.wanted:
        return []
    if not have and demand.has_load:
        return [(_FIRST_POD, _turn(claim, now_s=now_s), key, place)]
    worth = demand.load / (have + 1) / size
    return [(_BY_WORTH, -worth * (_PRESENT_RATIO if have < demand.present else 1.0), key, place)]


def _turn(claim: BudgetClaim, *, now_s: float) -> float:
    """The sort key of a revision's first pod; the lowest is granted first.

    Running turns come first, then revisions without a pod by their wait, then overdue turns.
    """
    if not claim.demand.present:
        return claim.since_s
    return -math.inf if now_s - claim.since_s < TURN_S else _AFTER_ALL - claim.since_s


class BudgetBook:
    """The claims of all revisions under budgets, and their pods."""

    def __init__(self, budgets: Budgets) -> None:
        self.budgets = budgets
        self._claims: dict[RevisionKey, BudgetClaim] = {}
        # By scope: the amount that all pods use, and the amount if every revision had all wanted pods.
        self._used: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._division: Division | None = None
        self._divided_s = -math.inf

    def reconfigure(self, budgets: Budgets) -> None:
        """Replace the budgets."""
        if budgets != self.budgets:
            claims, self._claims = self._claims, {}
            self.budgets = budgets
            self._division = None
            self._used.clear()
            self._asked.clear()
            for key, claim in claims.items():
                self._put(key, claim)

    def count_in(self, tenant: BudgetTenant, *, present: int) -> None:
        """Count the pods of a revision that this process does not decide on, or does not decide on yet."""
        demand = BudgetDemand(wanted=present, present=present, load=float(present), has_load=True)
        self._put(tenant.key, BudgetClaim(tenant=tenant, demand=demand))

    def forget(self, key: RevisionKey) -> None:
        """Drop a revision."""
        self._put(key, None)

    def allow(self, tenant: BudgetTenant, demand: BudgetDemand, now_s: float) -> Allowance | None:
        """The allowed pods of a revision; None means no limit."""
        limits = self.budgets.of(tenant.key[0])
        before = self._claims.get(tenant.key)
        # The write of a granted scale may still be on its way to the cluster.
        granted = 0 if before is None else before.granted
        claim = BudgetClaim(tenant=tenant, demand=demand, since_s=_since_s(before, demand, now_s), granted=granted)
        self._put(tenant.key, claim)
        if all(self._asked[scope] <= budget.amount for scope, budget in limits):
            self._put(tenant.key, msgspec.structs.replace(claim, granted=demand.wanted))
            return None
        is_new = before is None or before.demand.has_load != demand.has_load
        division, is_old = self._division, now_s - self._divided_s >= _DIVISION_VALID_S
        if division is None or is_new or is_old or tenant.key not in division.shares:
            division = self._division = allocate(list(self._claims.values()), self.budgets, now_s=now_s)
            self._divided_s = now_s
        share = min(demand.wanted, division.shares[tenant.key])
        free = min(
            (budget.amount - self._used[scope] - self._ahead(claim, division, scope))
            // budget.price_of(tenant.pod_bytes)
            for scope, budget in limits
        )
        count = min(share, max(demand.present, claim.used - tenant.ending + free))
        # A former grant counts until the scale contradicts it.
        self._put(tenant.key, msgspec.structs.replace(claim, granted=count))
        # An unwanted pod is not kept for a window while others wait for its capacity.
        if count >= demand.wanted and (demand.wanted or not demand.present):
            return None
        return self._allowance(claim, division, count=count, share=share)

    def _put(self, key: RevisionKey, claim: BudgetClaim | None) -> None:
        before = self._claims.pop(key, None)
        if claim is not None:
            self._claims[key] = claim
        for counted, sign in ((before, -1), (claim, 1)):
            for scope, budget in self.budgets.of(key[0]) if counted is not None else ():
                assert counted is not None
                price = sign * budget.price_of(counted.tenant.pod_bytes)
                self._used[scope] += price * counted.used
                self._asked[scope] += price * max(counted.used, counted.demand.wanted)

    def _ahead(self, claim: BudgetClaim, division: Division, scope: str) -> int:
        """How much of a scope's budget is reserved for the first pods of other revisions, which wait with requests.

        If this claim already has a pod, all of them come first; otherwise only those that have waited longer.
        """
        budget = self.budgets.by_scope[scope]
        return sum(
            budget.price_of(other.tenant.pod_bytes)
            for key, other in self._claims.items()
            if not other.used
            and other.demand.has_load
            and division.shares.get(key)
            and scope in ("", key[0])
            # A revision with pods comes after all these.
            and (claim.used or other.since_s < claim.since_s)
        )

    def _allowance(self, claim: BudgetClaim, division: Division, *, count: int, share: int) -> Allowance:
        limits, size = self.budgets.of(claim.tenant.key[0]), claim.tenant.pod_bytes
        too_large = [limit for limit in limits if limit[1].price_of(size) > limit[1].amount]
        scope, budget = (too_large or [limit for limit in limits if limit[0] in division.prices] or limits)[0]
        if too_large:
            reason = AllowanceReason.TOO_LARGE
        elif count < share:
            reason = AllowanceReason.ENDING
        elif scope in division.floors:
            reason = AllowanceReason.FLOORS
        else:
            reason = AllowanceReason.SHARE if count or not claim.demand.has_load else AllowanceReason.TURN
        return Allowance(
            count=count,
            wanted=claim.demand.wanted,
            reason=reason,
            budget=f"{budget.text} of {scope}" if scope else budget.text,
            all_wanted=division.wanted.get(scope, 0),
            price=division.prices.get(scope, 0.0),
            recheck_in_s=_RECHECK_S if reason in {AllowanceReason.ENDING, AllowanceReason.TURN} else None,
        )


def _since_s(before: BudgetClaim | None, demand: BudgetDemand, now_s: float) -> float:
    """When a revision began to wait; or, from its first ready pod on, when its turn began."""
    if before is None or not (demand.has_load and before.demand.has_load):
        return now_s
    is_starting = demand.present > 0 and not demand.ready
    is_changed = bool(before.demand.present) != bool(demand.present)
    return now_s if is_starting or is_changed else before.since_s
