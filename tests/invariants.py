"""Invariants of objects with memory, which tests check after every step."""

from serving.activator.queueing.router import RequestRouter
from serving.activator.queueing.throttler import RevisionThrottler
from serving.controller.routes.hosts import Claims
from serving.core.scaling.kpa.window import MetricWindows, Window
from serving.core.traffic.balance import Balancer
from serving.core.traffic.breaker import Breaker
from serving.core.traffic.meter import Meter


def validate(whole: object) -> None:
    """Assert the invariants of an object: a window, a meter, a breaker, a balancer, a throttler, a router, or claims."""
    match whole:
        case Window():
            assert len(whole._ring) == whole._bucket_count >= 1, whole
            assert whole._first is None or (whole._last is not None and whole._first <= whole._last), whole
        case MetricWindows():
            validate(whole._stable)
            validate(whole._panic)
        case Meter():
            # Levels may be negative under the quirk of the original.
            assert whole._direct_level >= 0, whole
            assert whole._proxied_level >= 0, whole
            assert whole._period_start_s <= whole._last_s, whole
            assert whole._proxied_integral >= 0, whole
            assert whole._direct_integral >= 0, whole
        case Breaker():
            _validate_breaker(whole)
        case Balancer():
            pods = whole._pods.values()
            free = [pod for pod in pods if pod.free]
            assert whole._in_flight == sum(pod.in_flight for pod in pods), whole
            assert whole._free_slots == sum(pod.slots - pod.in_flight for pod in free if pod.slots is not None), whole
            assert len(whole._free) == len(free), whole
            assert all(pod.listed or pod.in_flight for pod in pods), whole
        case RevisionThrottler():
            _validate_throttler(whole)
        case RequestRouter():
            for key, throttler in whole.throttlers.items():
                validate(throttler)
                revision = whole.directory.revision(key)
                assert revision is None or throttler.pods == whole.directory.pods_of(key), whole
        case Claims():
            pairs = {(host, route) for host, claims in whole._by_host.items() for route in claims}
            assert pairs == {(host, route) for route, hosts in whole._by_route.items() for host in hosts}
            assert all(whole._by_host.values())
        case _:
            raise AssertionError(f"no invariants are known of {whole!r}")


def _validate_breaker(breaker: Breaker[str]) -> None:
    running, waiting = breaker._running, breaker._waiting
    ended = breaker._finished + breaker._cancelled + breaker._timed_out + breaker._refused
    assert breaker._arrived == len(running) + len(waiting) + ended, breaker
    assert not running & waiting.keys(), breaker
    assert not waiting or (breaker._capacity is not None and len(running) >= breaker._capacity), breaker
    assert len(waiting) <= breaker._depth_max, breaker
    assert breaker._waiting_bytes == sum(place.weight_bytes for place in waiting.values()), breaker
    assert breaker._depth_bytes_max is None or breaker._waiting_bytes <= breaker._depth_bytes_max, breaker


def _validate_throttler(throttler: RevisionThrottler[str]) -> None:
    breaker, capacity, requeued = throttler._breaker, throttler.balancer.capacity, throttler._requeued
    for part in (breaker, throttler._meter, throttler.balancer):
        validate(part)
    assert len(breaker._running) == len(throttler.address_of) + len(requeued), throttler
    assert throttler.level == len(breaker._running) + len(breaker._waiting) + throttler.shared.requests.parked_count, (
        throttler
    )
    assert len(throttler._session_of) <= throttler.level, throttler
    assert not throttler.address_of.keys() & requeued.keys(), throttler
    assert throttler.ejected.addresses <= throttler.pods.keys(), throttler
    assert not throttler.waiting_count or capacity == len(throttler.address_of), throttler
    assert breaker.capacity == (None if capacity is None else capacity + len(requeued)), throttler
