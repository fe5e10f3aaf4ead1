"""The defaults and the bounds that LimitRanges put on pods."""

from typing import Any

import pytest

from serving.home.admission.limitranges import limit_breaches, with_limit_defaults
from serving.model.objects import Object, annotations_of


def pod(*resources: Object, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    containers = [{"name": f"c{number}", "resources": one} for number, one in enumerate(resources)]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


def limits(item: Object, kind: str = "Container", name: str = "l") -> Object:
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": kind, **item}]}}


def test_a_container_gets_what_it_leaves_open() -> None:
    found = with_limit_defaults(
        pod({"limits": {"cpu": "2"}}, initContainers=[{"name": "i"}]),
        [limits({"default": {"memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}, "min": {"cpu": "50m"}})],
    )
    (first,), (init,) = found["spec"]["containers"], found["spec"]["initContainers"]
    # Its limit of cpu is its request.
    assert first["resources"] == {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}
    assert init["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}}
    assert annotations_of(found)["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: memory request for container c0; memory limit for container c0; "
        "cpu, memory request for init container i; memory limit for init container i"
    )


def test_a_maximum_is_the_default_limit_and_the_first_range_by_name_counts() -> None:
    ranges = [limits({"default": {"cpu": "3"}}, name="b"), limits({"max": {"cpu": "1"}}, name="a")]
    (container,) = with_limit_defaults(pod({}), ranges)["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}


def test_a_pod_that_leaves_nothing_open_stays() -> None:
    whole = pod({"limits": {"cpu": "1"}})
    assert with_limit_defaults(whole, [limits({"max": {"cpu": "1"}})]) is whole


@pytest.mark.parametrize(
    ("item", "resources", "said"),
    [
        ({"min": {"cpu": "100m"}}, {}, "minimum cpu usage per Container is 100m.  No request is specified"),
        (
            {"min": {"cpu": "100m"}},
            {"requests": {"cpu": "50m"}},
            "minimum cpu usage per Container is 100m, but request is 50m",
        ),
        (
            {"min": {"cpu": "100m"}},
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "50m"}},
            "minimum cpu usage per Container is 100m, but limit is 50m",
        ),
        ({"max": {"memory": "1Gi"}}, {}, "maximum memory usage per Container is 1Gi.  No limit is specified"),
        (
            {"max": {"cpu": "1"}},
            {"limits": {"cpu": "1500m"}},
            "maximum cpu usage per Container is 1, but limit is 1500m",
        ),
        (
            {"max": {"cpu": "1"}},
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "maximum cpu usage per Container is 1, but request is 2",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"limits": {"cpu": "3"}, "requests": {"cpu": "1"}},
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {},
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"requests": {"cpu": "1"}},
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
    ],
)
def test_a_container_out_of_bounds_is_named_in_the_servers_words(item: Object, resources: Object, said: str) -> None:
    assert limit_breaches(pod(resources), [limits(item)]) == [said]


def test_a_container_within_bounds_is_no_breach() -> None:
    item = {"min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "2"}}
    assert limit_breaches(pod({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), [limits(item)]) == []


def test_a_pod_is_held_to_the_sum_of_its_containers() -> None:
    two = pod({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}})
    found = limit_breaches(two, [limits({"max": {"cpu": "1500m"}}, "Pod")])
    assert found == ["maximum cpu usage per Pod is 1500m, but limit is 2"]
