import pytest

from serving.core.model.objects import Object
from serving.home.controllers.manager import is_rebuilt

ROUTE = {"status": {"traffic": [{"percent": 100}]}}
POD = {"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
SLICE = {"endpoints": [{"conditions": {"ready": True}, "targetRef": {"name": "p"}}]}


def test_all_is_there() -> None:
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
def test_something_is_missing(routes: list[Object], pods: list[Object], slices: list[Object]) -> None:
    assert not is_rebuilt(routes, pods, slices)


def test_endpoints_that_are_no_pods_are_passed_over() -> None:
    activators = {"endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}]}
    assert is_rebuilt([ROUTE], [POD], [activators, SLICE])


def test_a_domain_mapping_without_a_status_is_waited_for() -> None:
    assert not is_rebuilt([], [], [], mappings=[{"metadata": {"name": "a.b"}}])
    assert is_rebuilt([], [], [], mappings=[{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}])


def test_a_route_that_has_failed_is_not_waited_for() -> None:
    failed = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert is_rebuilt([failed], [], [])
