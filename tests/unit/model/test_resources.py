import operator

import pytest

from serving.model.resources import Resources, pod_peak, resources_of


def test_amounts_are_read_as_kubernetes_writes_them() -> None:
    assert resources_of({"cpu": "250m", "memory": "64Mi"}) == Resources(cpu_m=250, memory_bytes=64 * 2**20)
    assert resources_of({"cpu": 2}) == Resources(cpu_m=2000)


def test_what_is_not_written_or_cannot_be_read_is_unset() -> None:
    assert resources_of(None) == Resources()
    assert resources_of({"cpu": "much", "memory": ""}) == Resources()


@pytest.mark.parametrize(
    ("containers", "before", "peak"),
    [
        ([], [], 0),
        ([1, 2], [(4, False), (3, False)], 4),
        ([1, 2], [(1, True), (4, False)], 5),
        ([1], [(4, False), (2, True)], 4),
        ([3], [(2, True), (2, True)], 7),
    ],
)
def test_a_pod_needs_what_runs_at_once(containers: list[int], before: list[tuple[int, bool]], peak: int) -> None:
    assert pod_peak(containers, before, none=0, add=operator.add, larger=max) == peak
