import math
from typing import Any

from serving.dashboard.board import COLUMNS
from serving.dashboard.sums import cost_of, summary
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


def table(*rows: tuple[float, dict[str, float | None]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [values.get(name) for _, values in rows] for name in COLUMNS}
    return {"at_s": [at_s for at_s, _ in rows], **columns}


def test_rows_are_summed_over_their_time() -> None:
    found = summary(
        "hello-00001",
        table(
            (0, {"ready": 2, "rps_2xx": 1.5, "rps_5xx": 0.5, "p99_s": 0.2}),
            (60, {"ready": 4, "rps_2xx": 1, "p99_s": 0.1}),
            # The dashboard did not run, for an hour.
            (120, {}),
            (3720, {"ready": 0, "rps_2xx": 2}),
        ),
    )
    # The last row counts as long as the one before it, at most ten minutes.
    assert (found.requests, found.errors) == (90 + 30 + 60 + 1200, 30)
    assert (found.pods_max, found.p99_max_s) == (4, 0.2)
    assert math.isclose(found.pod_hours, (2 * 60 + 4 * 60) / 3600)
    assert math.isclose(found.pods_mean, (2 * 60 + 4 * 60) / 720)


def test_one_row_alone_stands_for_no_time() -> None:
    found = summary("hello-00001", table((5, {"ready": 1, "rps_2xx": 3})))
    assert (found.requests, found.pods_mean, found.p99_max_s) == (0, 0.0, None)
