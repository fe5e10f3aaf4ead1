"""The gaps between a revision's requests, and the rate of the next request derived from them.

A gap is the time from the end of the last request to the next arrival. Gaps are counted by length, in bins of 1 s up to
50 s and of 3 % beyond; old gaps lose weight. The hazard of a bin is the rate of arrivals per second at that idle time:
the gaps that ended in the bin, divided by the idle time spent in the bin.

Bins with few gaps are unreliable. So a bin's rate is smoothed towards the rate of its group (lengths within a factor of
2), and a group's rate towards that of all revisions. The time of day is not used.

250 bins are few: plain floats take 60 µs once for each idle gap, and save the 10 MiB of numpy in the autoscaler.
"""

import bisect
import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.scaling.adaptive.policy_story import HazardCurve

# Bins are one second wide while that exceeds 3 %, the resolution of a report; beyond, 3 % separate 60 minutes from 62.
_FINE_UNTIL_S = 50.0
_BIN_RATIO = 1.03
# Longer gaps share a bin: no pod is kept or pre-warmed for them.
_LONGEST_S = 6 * 3600.0
_LAST_WIDTH_S = 3600.0
# A price of 0 would keep a pod forever.
_COST_MIN = 0.01
HALF_LIFE_GAPS = 50.0
"""A gap counts half after this many newer gaps, so that the history follows a change within about 100 gaps."""

_GROWTH = 2.0 ** (1.0 / HALF_LIFE_GAPS)
# The weight of a new gap grows, so that old ones need no update; beyond this weight all counts are scaled back.
_WEIGHT_MAX = 1e9
# The weight, in gaps, of the prior of a group, and of the population.
_FINE_STRENGTH = 2.0
_GROUP_STRENGTH = 2.0
# The weight of the shipped prior in the population's counts, in gaps.
_SHIPPED_STRENGTH = 200.0

# Below this weight a gap counts as forgotten.
_DUMPED_MIN = 0.005
# The total weight of all gaps is at most 1 / (1 - 1 / growth), about 73.
_DUMPED_MAX = 100.0
# Fitted to half of the functions of one day of Azure Functions (2019), each function with equal weight; see
# docs/scaling-quality.md. Mean time to the next request, in seconds, by group.
SHIPPED_PRIOR: tuple[float, ...] = tuple(
    1.0 / mean_s for mean_s in (40000, 24, 43, 74, 124, 163, 136, 198, 490, 498, 1075, 3757, 4912, 13448, 47817, 6482)
)
"""Rates by group for an unknown population."""
# A displayed curve extends half a window beyond the last window, and at least to this age, in seconds.
_BEYOND_RATIO = 1.5
_AGE_MIN_S = 300.0
# The number of bins displayed individually; of later bins every second one.
_FINE_BINS = 20


def _bin_starts() -> tuple[float, ...]:
    starts = [float(second) for second in range(int(_FINE_UNTIL_S))]
    at_s = _FINE_UNTIL_S
    while at_s < _LONGEST_S:
        starts.append(at_s)
        at_s *= _BIN_RATIO
    return (*starts, _LONGEST_S)


def _widths(starts_s: Sequence[float]) -> tuple[float, ...]:
    return (*(after - start for start, after in itertools.pairwise(starts_s)), _LAST_WIDTH_S)


BIN_STARTS_S: tuple[float, ...] = _bin_starts()
"""Shortest gap of each bin, in seconds; the last bin has no end."""

_WIDTHS_S = _widths(BIN_STARTS_S)
_GROUPS = [0, *(int(math.log2(start_s)) + 1 for start_s in BIN_STARTS_S[1:])]

GROUP_COUNT: int = _GROUPS[-1] + 1
"""Groups of bins: below 1 s, 1 s, 2 to 3 s, 4 to 7 s, and so on."""

# The bins of each group.
_GROUP_SLICES = [
    slice(bisect.bisect_left(_GROUPS, group), bisect.bisect_right(_GROUPS, group)) for group in range(GROUP_COUNT)
]
_GROUP_STARTS_S = tuple(BIN_STARTS_S[bins.start] for bins in _GROUP_SLICES)
_GROUP_WIDTHS_S = _widths(_GROUP_STARTS_S)
_FIRST_WIDTHS_S = [_WIDTHS_S[bins.start] for bins in _GROUP_SLICES]
# Half of each width, the last bin first.
_HALF_WIDTHS_BY_GROUP_S = [[0.5 * width_s for width_s in reversed(_WIDTHS_S[bins])] for bins in _GROUP_SLICES]
_GROUP_BINS = list(zip(_GROUP_SLICES, _FIRST_WIDTHS_S, _HALF_WIDTHS_BY_GROUP_S, strict=True))


class GapPrior:
    """How likely a request arrives in a gap (a time without requests) of a given length, over all revisions.

    The rates are built-in values at first; recorded gaps change them.
    """

    __slots__ = ("_events", "_exposure_s", "_rates")

    def __init__(self, shipped: Sequence[float]) -> None:
        assert len(shipped) == GROUP_COUNT, len(shipped)
        assert min(shipped) > 0, shipped
        self._events = [_SHIPPED_STRENGTH * share for share in _ends_by_group(shipped)]
        self._exposure_s = [events / rate for events, rate in zip(self._events, shipped, strict=True)]
        self._rates: tuple[float, ...] | None = None

    @property
    def rates(self) -> tuple[float, ...]:
        """Arrivals per second of idle time, by group of gap lengths."""
        if self._rates is None:
            self._rates = tuple(
                events / exposure_s for events, exposure_s in zip(self._events, self._exposure_s, strict=True)
            )
        return self._rates

    def record(self, gap_s: float, *, weight: float) -> None:
        """Add one gap of a revision. ``weight`` is chosen so that all revisions count equally."""
        group = _GROUPS[_bin_of(gap_s)]
        self._events[group] += weight
        for shorter in range(group):
            self._exposure_s[shorter] += weight * _GROUP_WIDTHS_S[shorter]
        self._exposure_s[group] += weight * min(gap_s - _GROUP_STARTS_S[group], _LAST_WIDTH_S)
        self._rates = None


class GapHistory:
    """The gaps of one revision: the times from the end of its last request to its next arrival."""

    __slots__ = ("_counts", "_ended", "_exposures_s", "_longer", "_weight", "gap_count")

    def __init__(self) -> None:
        self.gap_count = 0
        self._set(())

    def record(self, gap_s: float) -> None:
        """Record an ended gap of ``gap_s`` seconds."""
        self.gap_count += 1
        self._weight *= _GROWTH
        self._add(_bin_of(gap_s), self._weight)
        if self._weight > _WEIGHT_MAX:
            self._set([count / self._weight for count in self._counts])

    def hazard(self, prior: GapPrior) -> list[float]:
        """Arrivals per second of idle time, by bin of gap lengths. With few gaps, the result is close to ``prior``."""
        return [rate for _, rates in self.hazard_by_group(prior) for rate in rates]

    def hazard_by_group(
        self, prior: GapPrior, *, rate_min: float = 0.0, from_s: float = 0.0
    ) -> Iterator[tuple[int, list[float]]]:
        """Like ``hazard``, but by group: the number of its first bin, and its rates. Valid until the next gap.

        Groups that end before ``from_s``, and most groups with only rates below ``rate_min`` are left out. Each group
        is computed when it is read.

        Example without a prior: 2 of 5 gaps ended in a bin of 3 s, and 3 were longer. The idle time in the bin is 3 x
        (3 + 2 / 2) = 12 s, so the rate is 2 / 12 per second.
        """
        # Counts and times are multiplied by the weight of the newest gap.
        group_strength, fine_strength = _GROUP_STRENGTH * self._weight, _FINE_STRENGTH * self._weight
        first, rates_by_group = _GROUPS[_bin_of(from_s)], prior.rates
        for group in range(first, GROUP_COUNT):
            bins, width_s, half_widths_s = _GROUP_BINS[group]
            prior_rate, exposure_s = rates_by_group[group], self._exposures_s[group]
            ended, longer = self._ended[group], self._longer[group]
            believed_s = fine_strength * (exposure_s + group_strength / prior_rate) / (ended + group_strength)
            # The first bin is the narrowest, and no bin has more gaps than its group.
            narrow_s = width_s * longer + believed_s
            if (ended + fine_strength) / narrow_s < rate_min:
                continue
            counts = self._counts[bins]
            if (max(counts) + fine_strength) / narrow_s < rate_min:
                continue
            counts.reverse()
            endings = list(itertools.accumulate(counts, initial=longer))
            rates = [
                (count + fine_strength) / (half_width_s * (ending + longer) + believed_s)
                for count, ending, longer, half_width_s in zip(
                    counts, endings[1:], endings, half_widths_s, strict=False
                )
            ]
            rates.reverse()
            yield bins.start, rates

    def _set(self, counts: Iterable[float]) -> None:
        """Replace the gaps of all bins; the newest gap has the weight 1."""
        self._weight = 1.0
        self._counts = array("d", bytes(8 * len(BIN_STARTS_S)))
        # By group: the idle time in it, the gaps that ended in it, and those that were longer.
        self._exposures_s, self._ended, self._longer = (array("d", bytes(8 * GROUP_COUNT)) for _ in range(3))
        for index, count in enumerate(counts):
            if count:
                self._add(index, count)

    def _add(self, index: int, weight: float) -> None:
        """Add a gap that ended in this bin."""
        group, exposures_s, longer = _GROUPS[index], self._exposures_s, self._longer
        self._counts[index] += weight
        self._ended[group] += weight
        for shorter in range(group):
            exposures_s[shorter] += weight * _GROUP_WIDTHS_S[shorter]
            longer[shorter] += weight
        exposures_s[group] += weight * (BIN_STARTS_S[index] - _GROUP_STARTS_S[group] + 0.5 * _WIDTHS_S[index])

    def ended_between(self, from_s: float, to_s: float) -> tuple[float, float]:
        """The number of gaps of at least ``from_s``, and of those that ended before ``to_s``; old gaps weigh less."""
        first, last = _bin_of(from_s), _bin_of(to_s)
        ended, later = sum(self._counts[first:last]), sum(self._counts[max(first, last) :])
        return (ended + later) / self._weight, ended / self._weight

    def dump(self) -> dict[str, float]:
        """The counts of non-empty bins, as input for ``load``."""
        counts = [count / self._weight for count in self._counts]
        return {str(index): round(count, 3) for index, count in enumerate(counts) if count > _DUMPED_MIN}

    def load(self, dumped: dict[str, float]) -> None:
        """Restore the counts of a ``dump``. Raises ``InvalidValue``."""
        counts = array("d", bytes(8 * len(BIN_STARTS_S)))
        for name, count in dumped.items():
            if not name.isdecimal() or int(name) >= len(counts) or not 0 <= count <= _DUMPED_MAX:
                raise InvalidValue(text=f"{name}: {count}", expected="a bin of gaps and how many it has")
            counts[int(name)] = count
        if sum(counts) > _DUMPED_MAX:
            raise InvalidValue(
                text=f"{sum(counts):g} gaps", expected=f"a bin of gaps each, at most {_DUMPED_MAX:g} gaps in all"
            )
        self._set(counts)
        self.gap_count = max(round(sum(counts)), int(bool(dumped)))


def _bin_of(gap_s: float) -> int:
    if gap_s < _FINE_UNTIL_S:
        return max(0, int(gap_s))
    return bisect.bisect_right(BIN_STARTS_S, gap_s) - 1


def _ends_by_group(rates: Sequence[float]) -> list[float]:
    """The share of all gaps that end in each group, given the rates."""
    shares, passed = [], 0.0
    for rate, width_s in zip(rates, _GROUP_WIDTHS_S, strict=True):
        shares.append(max(math.exp(-passed) * (1.0 - math.exp(-rate * width_s)), 1e-6))
        passed += rate * width_s
    return [share / sum(shares) for share in shares]


def arrivals_until(hazard: Sequence[float], age_s: float) -> float:
    """The expected number of arrivals in an idle time of ``age_s`` seconds (at most six hours), at these rates."""
    age_s = min(age_s, _LONGEST_S)
    last = _bin_of(age_s)
    whole = sum(rate * width_s for rate, width_s in zip(hazard[:last], _WIDTHS_S, strict=False))
    return whole + hazard[last] * (age_s - BIN_STARTS_S[last])


class KeepWindow(msgspec.Struct, frozen=True):
    """A period of an idle gap in which a pod should be ready, in seconds since the last request ended."""

    from_s: float
    to_s: float


class GapPlan:
    """The plan for an idle gap: when a pod should be ready, and ``worth_s``, the worth of a cold start in pod-seconds.

    Iterating yields the windows in order. Each is computed when it is first read, because most gaps end before.
    """

    # The rates are not stored: they would be a quarter of a revision's state, and can be computed from the gaps.
    __slots__ = ("_known", "_later", "worth_s")

    def __init__(self, windows: Iterable[KeepWindow], worth_s: float) -> None:
        self._later = iter(windows)
        self._known: list[KeepWindow] = []
        self.worth_s = worth_s

    def __iter__(self) -> Iterator[KeepWindow]:
        yield from self._known
        for window in self._later:
            self._known.append(window)
            yield window


class KeepBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds and prices from which ``keep_windows`` computes. Times are in seconds.

    ``worth_s`` is the worth of a cold start in pod-seconds. The first window lasts at least ``min_s``; ``max_s`` bounds
    its cost (``kept_max_s``). Windows at most ``bridge_s`` apart are joined. ``start_s`` is how long a pod takes to
    start. Without ``pre_warms`` there are no later windows. An idle pod becomes dormant after ``dormant_after_s``.
    ``dormant_cost`` is the price of a dormant pod per second, relative to a running pod.
    """

    worth_s: float
    min_s: float
    max_s: float
    bridge_s: float
    start_s: float
    pre_warms: bool

    dormant_after_s: float = math.inf
    dormant_cost: float = 1.0

    @property
    def kept_max_s(self) -> float:
        """The maximum length of the first window: its cost is at most that of a pod running for ``max_s`` seconds.

        Example: ``max_s`` is 30 min, and a pod is dormant after 10 s, at a fifth of the price. It may run for 10 s and
        be dormant for 5 x 1790 s, in all 149 min 20 s.
        """
        longest_s = max(self.max_s, self.min_s)
        if self.dormant_after_s >= longest_s:
            return longest_s
        dormant_s = (longest_s - self.dormant_after_s) / max(self.dormant_cost, _COST_MIN)
        return min(self.dormant_after_s + dormant_s, _LONGEST_S)

    @property
    def warming_s(self) -> float:
        """Fixed cost of a started pod in pod-seconds: its start, and the time until it is dormant."""
        if self.dormant_after_s == math.inf:
            return self.start_s
        return self.start_s + self.dormant_after_s * (1.0 - self.dormant_cost)

    @property
    def rate_min(self) -> float:
        """A rate below which no pod is worth its price."""
        # Rounding must not remove a rate that is just worth it.
        return (1.0 - 1e-9) * min(1.0, self.prices(len(BIN_STARTS_S), 1)[0]) / self.worth_s

    def prices(self, first: int, count: int) -> list[float]:
        """The price per second in ``count`` bins, beginning with ``first``: of a running pod, or of a dormant one."""
        if self.dormant_after_s == math.inf:
            return [1.0] * count
        dormant = bisect.bisect_left(BIN_STARTS_S, self.dormant_after_s)
        return [self.dormant_cost if index >= dormant else 1.0 for index in range(first, first + count)]


def keep_windows(hazard: Iterable[tuple[int, Sequence[float]]], bounds: KeepBounds) -> Iterator[KeepWindow]:
    """The keep windows, in order.

    ``hazard`` has the rates by bin, in parts with the number of their first bin. Parts are read when they are needed.
    Parts with only rates below ``rate_min`` may be missing.

    The first window begins at 0, and lasts from ``min_s`` to ``kept_max_s``. Later windows are for pre-warming. Two
    windows with a pause of at most ``bridge_s`` are joined. A later window must also pay for its pod's start: its
    expected saving minus its price must be at least ``warming_s``.

    A pod stays while the rate times the worth of a cold start is at least the price of a second. Example: at a worth of
    100 s, a running pod needs a rate of 0.01 per second. A dormant pod with a price of 0.2 needs a rate of 0.002.
    """
    from_s, to_s, is_open = 0.0, bounds.min_s, True
    for first, rates in _worthwhile(hazard, bounds):
        last = first + len(rates)
        if is_open and BIN_STARTS_S[first] - to_s <= bounds.bridge_s:
            to_s = max(to_s, BIN_STARTS_S[last]) if rates else to_s
            continue
        if is_open:
            yield _window(from_s, to_s, bounds)
            is_open = False
        if rates and not bounds.pre_warms:
            return
        if rates and _saved_s(rates, _WIDTHS_S[first:last], bounds) >= bounds.warming_s:
            from_s, to_s, is_open = BIN_STARTS_S[first], BIN_STARTS_S[last], True
    if is_open:
        yield _window(from_s, to_s, bounds)


def _window(from_s: float, to_s: float, bounds: KeepBounds) -> KeepWindow:
    return KeepWindow(from_s, to_s if from_s else min(to_s, bounds.kept_max_s))


def _worthwhile(hazard: Iterable[tuple[int, Sequence[float]]], bounds: KeepBounds) -> Iterator[tuple[int, list[float]]]:
    """The sequences of bins in which a pod is worth its price, each with its first bin and its rates.

    An empty sequence means that the later ones do not begin before this bin.
    """
    last = len(BIN_STARTS_S) - 1
    worth_s, price_max = bounds.worth_s, max(bounds.prices(0, 1) + bounds.prices(last, 1))
    start, run = 0, list[float]()
    for first, part in hazard:
        if first != start + len(run):
            if run:
                yield start, run
            start, run = first, []
        # The last bin has no end.
        rates = part[: last - first]
        if min(rates, default=0.0) * worth_s >= price_max:
            run += rates
            continue
        index = first
        for rate, price in zip(rates, bounds.prices(first, len(rates)), strict=True):
            index += 1
            if rate * worth_s >= price:
                run.append(rate)
                continue
            if run:
                yield start, run
            start, run = index, []
        if not run:
            yield start, run
    if run:
        yield start, run


def _saved_s(hazard: Sequence[float], widths_s: Sequence[float], bounds: KeepBounds) -> float:
    """The expected saving of a pod in a window minus its price, in pod-seconds, given no earlier request."""
    saved_s = passed = 0.0
    for rate, width_s in zip(hazard, widths_s, strict=True):
        saved_s += math.exp(-passed) * (rate * bounds.worth_s - bounds.dormant_cost) * width_s
        passed += rate * width_s
    return saved_s


def curve_of(hazard: Sequence[float], windows: Sequence[KeepWindow], *, worth_s: float, gap_count: int) -> HazardCurve:
    """The hazard curve for display. ``worth_s`` is the worth of a cold start in pod-seconds."""
    last = bisect.bisect_left(BIN_STARTS_S, max(_AGE_MIN_S, _BEYOND_RATIO * windows[-1].to_s))
    bins = [*range(_FINE_BINS), *range(_FINE_BINS, min(last + 1, len(hazard)), 2)]
    return HazardCurve(
        ages_s=tuple(round(BIN_STARTS_S[index], 1) for index in bins),
        # Merged bins show the higher rate, because a pod is started for a narrow peak.
        rates=tuple(float(f"{max(hazard[index : index + 1 + (index >= _FINE_BINS)]):.3g}") for index in bins),
        threshold=1.0 / worth_s,
        windows=tuple((round(window.from_s, 1), round(window.to_s, 1)) for window in windows),
        gap_count=gap_count,
    )
