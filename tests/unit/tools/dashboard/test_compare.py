import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from serving.core.model.errors import ServingError
from serving.core.traffic.latencies import quantile_s
from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.compare import SettingDifference, chosen_pair, compared, differences, spread_of

STEP_S = 5.0
SPAN = (0.0, 600.0)


def service(**shares: int) -> dict[str, Any]:
    traffic = [{"revisionName": name.replace("_", "-"), "percent": percent} for name, percent in shares.items()]
    return {"metadata": {"namespace": "shop", "name": "hello"}, "status": {"traffic": traffic}}


def revision(number: int, *, memory: str = "512Mi") -> dict[str, Any]:
    labels = {"serving.knative.dev/configurationGeneration": str(number)}
    container = {"image": "x", "resources": {"limits": {"memory": memory}}}
    metadata = {"name": f"r-{number}", "labels": labels, "creationTimestamp": "2026-11-28T00:00:00Z"}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def history(*rows: dict[str, float | None]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [each_row.get(name) for each_row in rows] for name in COLUMNS}
    return {"at_s": [STEP_S * place for place in range(len(rows))], **columns}


def step(durations: Sequence[float], **more: float) -> dict[str, float | None]:
    """A history row for responses with these durations."""
    ordered = sorted(durations)
    quantiles = {
        f"p{ratio:.0f}_s": ordered[max(0, math.ceil(ratio / 100 * len(ordered)) - 1)] if ordered else None
        for ratio in (50.0, 95.0, 99.0)
    }
    return {"rps_2xx": len(ordered) / STEP_S, "ready": 1.0, **quantiles, **more}


@pytest.mark.parametrize(
    ("shares", "pair"),
    [
        ({"r_3": 10, "r_1": 90}, ("r-1", "r-3")),
        ({"r_3": 5, "r_2": 15, "r_1": 80}, ("r-1", "r-2")),
        ({"r_3": 100}, ("r-2", "r-3")),
        # After a rollback to the oldest revision there is no older one.
        ({"r_1": 100}, ("r-1", "r-2")),
        ({"r_3": 60, "r_1": 0, "r_2": 40}, ("r-2", "r-3")),
        ({}, ("r-2", "r-3")),
    ],
)
def test_revisions_with_the_most_traffic_are_compared_by_default(shares: dict[str, int], pair: tuple[str, str]) -> None:
    older, newer = chosen_pair(service(**shares), [revision(2), revision(1), revision(3)])
    assert (older["metadata"]["name"], newer["metadata"]["name"]) == pair


def test_named_revisions_are_compared_in_the_requested_order() -> None:
    revisions = [revision(number) for number in range(1, 12)]
    older, newer = chosen_pair(service(r_11=100), revisions, ["r-11", "r-2"])
    assert (older["metadata"]["name"], newer["metadata"]["name"]) == ("r-11", "r-2")


@pytest.mark.parametrize(
    ("count", "names", "error"),
    [
        (2, ["r-7", "r-1"], "hello has no revision r-7; there are r-2, r-1"),
        (2, ["r-1"], "r-1 cannot be compared; expected two revisions of hello"),
        (2, ["r-1", "r-1"], "r-1 and r-1 cannot be compared; expected two revisions of hello"),
        (3, ["r-1", "r-2", "r-3"], "r-1 and r-2 and r-3 cannot be compared; expected two revisions of hello"),
        (1, [], "hello has r-1; a comparison needs two revisions"),
        (0, [], "hello has no revision; a comparison needs two revisions"),
    ],
)
def test_invalid_comparison_is_rejected_with_a_reason(count: int, names: list[str], error: str) -> None:
    revisions = [revision(number) for number in range(1, count + 1)]
    with pytest.raises(ServingError) as caught:
        chosen_pair(service(r_1=100), revisions, names)
    assert str(caught.value) == error


def test_comparison_reports_numbers_of_both_revisions() -> None:
    slow = history(*(step([0.2] * 10, rps_5xx=2.0, ready=2.0) for _ in range(12)))
    revision_comparison = compared(
        service(r_1=90, r_2=10),
        (revision(1), revision(2, memory="1Gi")),
        (history(), slow),
        span_s=SPAN,
        prices={"pod_hour": 36.0, "gib_hour": 0.0},
    )
    assert (
        revision_comparison.namespace,
        revision_comparison.service,
        revision_comparison.from_s,
        revision_comparison.to_s,
    ) == ("shop", "hello", *SPAN)
    assert [setting_difference.name for setting_difference in revision_comparison.settings] == ["limits.memory"]
    empty, full = revision_comparison.revisions
    assert (empty.traffic_percent, empty.requests, empty.p99_s, empty.pod_seconds) == (90, 0, None, 0.0)
    assert (full.traffic_percent, full.requests, full.errors, full.pods_mean) == (10, 240, 120, 2.0)
    assert (full.pod_seconds, full.gib_seconds) == (120.0, 120.0)
    assert full.price is not None
    assert math.isclose(full.price, 36 * 120 / 3600)
    assert full.p50_s is not None
    assert full.p50_s == full.p99_s
    assert abs(full.p50_s / 0.2 - 1) < 0.03


@pytest.mark.parametrize(("per_step", "within"), [(1, 0.02), (3, 0.07), (30, 0.07), (200, 0.07)])
def test_range_quantiles_approximate_those_of_all_responses(per_step: int, within: float) -> None:
    dice = random.Random(7)
    steps = [[0.05 * math.exp(dice.gauss(0, 0.5)) for _ in range(per_step)] for _ in range(3000 // per_step)]
    everything = sorted(duration for durations in steps for duration in durations)
    spread = spread_of(history(*map(step, steps)))
    for ratio in (0.5, 0.95, 0.99):
        true = everything[math.ceil(ratio * len(everything)) - 1]
        result = quantile_s(spread, ratio)
        assert result is not None
        assert abs(result / true - 1) < within, (ratio, result, true)


def test_quantiles_are_weighted_by_the_responses_of_a_step() -> None:
    steps = [step([0.01] * 900), *(step([1.0]) for _ in range(9))]
    spread = spread_of(history(*steps))
    assert math.isclose(sum(spread.values()), 909)
    assert (quantile_s(spread, 0.95) or 0) < 0.011
    assert (quantile_s(spread, 0.995) or 0) > 0.9
    # A gap has no numbers.
    assert spread_of(history({}, step([]))) == {}


def settings_of(
    *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: object
) -> dict[str, Any]:
    metadata = {"name": "hello-00001", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": list(containers), **spec}}


def row(name: str, older: str | None, newer: str | None) -> SettingDifference:
    return SettingDifference(name=name, older=older, newer=newer)


def test_differing_images_resources_and_numbers_show_their_values() -> None:
    before = settings_of({"image": "a", "resources": {"limits": {"memory": "1Gi"}}}, containerConcurrency=10)
    after = settings_of(
        {"image": "b", "resources": {"requests": {"cpu": "2"}}}, containerConcurrency=20, timeoutSeconds=5
    )
    assert differences(before, after) == [
        row("containerConcurrency", "10", "20"),
        row("image", "a", "b"),
        row("limits.memory", "1Gi", None),
        row("requests.cpu", None, "2"),
        row("timeoutSeconds", None, "5"),
    ]
    assert differences(before, before) == []


def test_differing_variables_and_commands_hide_their_values() -> None:
    def settings_with(word: str, **more: str) -> dict[str, Any]:
        secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": word, "key": word}}}
        env = [{"name": "SAME", "value": "zq-same"}, {"name": "KEY", "value": word}, secret]
        env += [{"name": name, "value": value} for name, value in more.items()]
        probe = {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": word}]}}
        container = {"image": "x", "command": ["run", word], "env": env, "readinessProbe": probe}
        annotations = {"serving.dev/command": word, "example.com/note": word}
        return settings_of(container, annotations=annotations, volumes=[{"name": word}])

    setting_differences = differences(settings_with("zq-one"), settings_with("zq-two", NEW="zq-three"))
    assert setting_differences == [
        *(row(name, "set", "another value") for name in ("command", "env KEY")),
        row("env NEW", None, "set"),
        *(row(name, "set", "another value") for name in ("env TOKEN", "example.com/note", "readinessProbe")),
        *(row(name, "set", "another value") for name in ("serving.dev/command", "volumes")),
    ]
    assert "zq" not in str(setting_differences)


def test_scaling_annotations_are_compared_and_daemon_annotations_ignored() -> None:
    before = {"autoscaling.knative.dev/max-scale": "4", "serving.knative.dev/routes": "a", "serving.dev/snapshot": "1f"}
    after = {
        "autoscaling.knative.dev/max-scale": "5",
        "autoscaling.serving.dev/learnt": "x",
        "serving.dev/snapshot": "2a",
    }
    assert differences(settings_of(annotations=before), settings_of(annotations=after, servingState="Reserve")) == [
        row("autoscaling.knative.dev/max-scale", "4", "5"),
        row("serving.dev/snapshot", "1f", "2a"),
    ]


def test_differences_of_several_containers_name_the_container() -> None:
    before = settings_of({"name": "app", "image": "a"}, {"name": "log", "image": "b"})
    after = settings_of(
        {"name": "app", "image": "a"}, {"name": "log", "image": "c"}, initContainers=[{"name": "set", "image": "d"}]
    )
    assert differences(before, after) == [row("init set: image", None, "d"), row("log: image", "b", "c")]
