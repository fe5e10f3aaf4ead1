import pytest

from serving.core.model.objects import Object
from serving.home.controllers.manager import is_rebuilt

ROUTE = {"status": {"traffic": [{"percent": 100}]}}
POD = {"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
SLICE = {"endpoints": [{"conditions": {"ready": True}, "targetRef": {"name": "p"}}]}


def test_state_is_rebuilt_with_ready_routes_pods_and_endpoints() -> None:
    assert is_rebuilt([ROUTE], [POD], [SLICE])


@pytest.mark.parametrize(
    ("routes", "pods", "slices"),
    [
        ([{}], [POD], [SLICE]),
        ([ROUTE], [{**POD, "status": {}}], [SLICE]),
        ([ROUTE], [POD], []),
        ([ROUTE], [POD], [{"endpoints": [{"conditions": {"ready": False}, "targetRef": {"name": "p"}}]}]),
    ],
)
def test_state_is_not_rebuilt_if_a_part_is_missing(
    routes: list[Object], pods: list[Object], slices: list[Object]
) -> None:
    assert not is_rebuilt(routes, pods, slices)


def test_endpoints_without_pods_are_ignored() -> None:
    activators = {"endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}]}
    assert is_rebuilt([ROUTE], [POD], [activators, SLICE])


def test_state_is_not_rebuilt_with_domain_mapping_without_status() -> None:
    assert not is_rebuilt([], [], [], mappings=[{"metadata": {"name": "a.b"}}])
    assert is_rebuilt([], [], [], mappings=[{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}])


def test_failed_route_counts_as_rebuilt() -> None:
    failed = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert is_rebuilt([failed], [], [])
