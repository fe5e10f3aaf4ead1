"""Invariants of objects with memory, which tests check after every step."""

from serving.activator.queueing.router import RequestRouter
from serving.activator.queueing.throttler import RevisionThrottler
from serving.controller.routes.hosts import Claims
from serving.core.scaling.kpa.window import MetricWindows, Window
from serving.core.traffic.admission import Admission
from serving.core.traffic.balance import Balancer
from serving.core.traffic.meter import Meter


def validate(whole: object) -> None:
    """Assert the invariants of an object: a window, a meter, an admission, a balancer, a throttler, a router, or claims."""
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
        case Admission():
            _validate_admission(whole)
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


def _validate_admission(admission: Admission[str]) -> None:
    running, waiting, requeued = admission._running, admission._waiting, admission._requeued
    terms, clients = admission._terms, admission._clients
    assert not running & waiting.keys(), admission
    assert requeued.keys() <= running, admission
    used_count = len(running) - len(requeued)
    assert not (waiting or requeued) or (admission.capacity is not None and used_count >= admission.capacity), admission
    assert len(waiting) <= terms.depth_max, admission
    assert admission._waiting_bytes == sum(place.weight_bytes for place in waiting.values()), admission
    assert terms.depth_bytes_max is None or admission._waiting_bytes <= terms.depth_bytes_max, admission
    parked = [request for parked in clients._parked.values() for request in parked]
    assert len(parked) == clients.parked_count, admission
    assert not set(parked) & (running | waiting.keys()), admission


def _validate_throttler(throttler: RevisionThrottler[str]) -> None:
    admission, capacity = throttler.admission, throttler.balancer.capacity
    for part in (admission, throttler._meter, throttler.balancer):
        validate(part)
    assert admission._running - admission._requeued.keys() == throttler.address_of.keys(), throttler
    assert throttler.level == len(admission._running) + len(admission._waiting) + admission.parked_count, throttler
    assert len(throttler._session_of) <= throttler.level, throttler
    assert throttler.ejected.addresses <= throttler.pods.keys(), throttler
    assert not throttler.waiting_count or capacity == len(throttler.address_of), throttler
    assert admission.capacity == capacity, throttler
