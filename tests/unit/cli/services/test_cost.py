import math
from typing import Any

from serving.cli.services.cost import cost_of
from serving.model.revisionnumbers import PolicyCosts
from serving.scaling.adaptive.policy_story import PolicyStory

HOUR_S = 3600.0


def history(*ready: float | None) -> dict[str, list[Any]]:
    """Rows of ten minutes."""
    return {"at_s": [600.0 * place for place in range(len(ready))], "ready": list(ready)}


def story(revision: str, policy: str, *, adaptive: float, knative: float) -> PolicyStory:
    costs = PolicyCosts(
        adaptive_pod_seconds=adaptive,
        adaptive_cold_requests=0.0,
        knative_pod_seconds=knative,
        knative_cold_requests=0.0,
        covered_s=600.0,
    )
    return PolicyStory(
        namespace="default",
        revision=revision,
        policy=policy,
        shadow_scale=0,
        costs=costs,
        sentence="",
        idle_since_wall_s=None,
        curve=None,
    )


def test_revisions_of_a_service_are_summed_up() -> None:
    found = cost_of(
        "hello",
        {"a": history(2, 2, 0, None, 0, 0), "b": history(0, 1, 0, None, 0, 0)},
        memory={"a": 2**30, "b": 2**29},
        stories=[],
        prices={"pod_hour": 3.0, "gib_hour": 6.0},
    )
    assert math.isclose(found.pod_hours, (2 + 2 + 1) / 6)
    assert math.isclose(found.gib_hours, (4 + 0.5) / 6)
    assert found.price is not None
    assert math.isclose(found.price, 3 * found.pod_hours + 6 * found.gib_hours)
    # Two pods, three, and one for the rest of the hour.
    assert math.isclose(found.always_on_pod_hours, (2 + 3 + 4) / 6)
    assert found.knative_pod_hours is None


def test_the_estimate_of_the_other_policy_counts_where_the_adaptive_one_is_in_force() -> None:
    histories = {"a": history(1, 1), "b": history(1, 1)}
    stories = [
        story("a", "adaptive", adaptive=100.0, knative=150.0),
        story("b", "knative", adaptive=100.0, knative=150.0),
    ]
    found = cost_of("hello", histories, memory={}, stories=stories, prices={"pod_hour": 0.0})
    assert found.price is None
    assert found.knative_pod_hours is not None
    assert math.isclose(found.knative_pod_hours * HOUR_S, 1200 * 1.5 + 1200)
    nothing = [story("a", "adaptive", adaptive=0.0, knative=5.0)]
    assert cost_of("hello", {"a": history(0)}, memory={}, stories=nothing, prices={}).knative_pod_hours == 0.0
