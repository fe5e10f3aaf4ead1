from typing import Any

import pytest

from serving.tools.dashboard.coldstarts import (
    CREATED,
    DECIDED,
    READY,
    SCHEDULED,
    SENT,
    STARTED,
    UNKNOWN,
    ColdRequest,
    ColdStarts,
    StartFacts,
    summary,
)

KEY = "default/hello-00001"
# 2026-11-24T10:00:00Z.
BASE_S = 1_795_514_400.0
PLAIN = StartFacts(service="hello")


def pod(
    name: str = "p",
    *,
    node: str = "n",
    running: list[str | None] | None = None,
    is_ready: bool = False,
    revision: str = "hello-00001",
) -> dict[str, Any]:
    """A Pod; ``running`` are the start stamps of its containers, None for one that does not run."""
    labels = {"serving.knative.dev/revision": revision} if revision else {}
    statuses = [{"state": {"running": None if text is None else {"startedAt": text}}} for text in running or ()]
    conditions = [{"type": "Ready", "status": "True" if is_ready else "False"}]
    metadata = {"namespace": "default", "name": name, "labels": labels, "creationTimestamp": "2026-11-24T10:00:00Z"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node} if node else {},
        "status": {"containerStatuses": statuses, "conditions": conditions},
    }


def request(asked_s: float = 0.0, waited_s: float = 1.0) -> ColdRequest:
    return ColdRequest(revision="hello-00001", asked_s=BASE_S + asked_s, waited_s=waited_s)


def steps_of(seen: ColdStarts, *requests: ColdRequest) -> list[dict[str, float]]:
    return [start["steps"] for start in seen.starts(KEY, requests or [request()])]


def started(seen: ColdStarts, name: str, at_s: float) -> None:
    """A pod that takes 0.7 s from its creation to its readiness, as a cluster reports it."""
    for after_s, changes in (
        (0.1, {"node": ""}),
        (0.2, {}),
        (0.6, {"running": ["2026-11-24T10:00:00Z"]}),
        (0.8, {"is_ready": True}),
    ):
        seen.set_pod(pod(name, **changes), BASE_S + at_s + after_s)


def test_cold_start_steps_end_at_the_observed_pod_changes() -> None:
    seen = ColdStarts()
    seen.record_change(KEY, BASE_S + 0.05)
    started(seen, "p", 0.0)
    assert steps_of(seen) == [
        {DECIDED: 0.05, CREATED: 0.05, SCHEDULED: 0.1, STARTED: 0.4, READY: 0.2, SENT: 0.2},
    ]
    # Later changes of the pod, and other pods, do not belong to this start.
    seen.set_pod(pod("p", running=["2026-11-24T10:00:00Z"], is_ready=True), BASE_S + 3)
    seen.set_pod(pod("q", revision=""), BASE_S)
    assert len(steps_of(seen)) == 1


def test_pod_reported_ready_after_the_response_belongs_to_the_cold_start() -> None:
    seen = ColdStarts()
    seen.set_pod(pod(), BASE_S + 0.1)
    seen.set_pod(pod(running=["2026-11-24T10:00:00Z"]), BASE_S + 0.5)
    expected = [{UNKNOWN: 0.1, STARTED: 0.4, READY: 0.2}]
    assert steps_of(seen, request(waited_s=0.7)) == expected, "the report is yet to come"
    seen.set_pod(pod(running=["2026-11-24T10:00:00Z"], is_ready=True), BASE_S + 1.5)
    assert steps_of(seen, request(waited_s=0.7)) == expected


def test_fractional_start_timestamp_overrides_the_observation_time() -> None:
    seen = ColdStarts()
    seen.set_pod(pod(), BASE_S + 0.1)
    stamps: list[str | None] = ["2026-11-24T10:00:00.200000Z", "2026-11-24T10:00:00.300000Z"]
    seen.set_pod(pod(running=[stamps[0], None]), BASE_S + 0.7)
    seen.set_pod(pod(running=stamps, is_ready=True), BASE_S + 0.9)
    assert steps_of(seen) == [{UNKNOWN: 0.1, STARTED: 0.2, READY: 0.6, SENT: 0.1}]


def test_clock_offset_yields_no_negative_or_overlong_step() -> None:
    seen = ColdStarts()
    seen.record_change(KEY, BASE_S - 0.3)
    seen.set_pod(pod(), BASE_S + 0.4)
    seen.set_pod(pod(running=["2026-11-24T09:59:59.000000Z"], is_ready=True), BASE_S + 1.3)
    (steps,) = steps_of(seen)
    assert steps == {CREATED: 0.4, READY: 0.6}
    assert sum(steps.values()) == pytest.approx(1.0)


def test_pod_ready_at_another_time_does_not_explain_a_cold_start() -> None:
    seen = ColdStarts()
    seen.set_pod(pod("old", is_ready=True), BASE_S + 60)
    seen.set_pod(pod("late", is_ready=False), BASE_S)
    assert steps_of(seen) == [{UNKNOWN: 1.0}]
    assert steps_of(seen, request(60.0)) == [{UNKNOWN: 1.0}]


def test_last_20_cold_starts_are_listed_newest_first() -> None:
    seen = ColdStarts()
    for number in range(25):
        seen.record_change(KEY, BASE_S + number)
        seen.set_pod(pod(f"p-{number}", is_ready=True), BASE_S + 0.1)
    starts = seen.starts(KEY, [request(number) for number in range(25)])
    assert [entry["at_s"] for entry in starts] == [BASE_S + number for number in range(24, 4, -1)]
    seen.forget(KEY)
    assert steps_of(seen) == [{UNKNOWN: 1.0}]


def test_cold_start_summary_is_the_median_or_empty() -> None:
    seen = ColdStarts()
    started(seen, "p", 0.0)
    median = summary(seen.starts(KEY, [request(), request(waited_s=3.0)]), PLAIN)
    assert median["took_s"] == 2.0
    assert summary([], PLAIN) == {"took_s": None, "steps": {}, "advice": ""}
    unknown = [{"at_s": 0.0, "took_s": 0.0, "steps": {}}]
    assert summary(unknown, PLAIN) == {"took_s": 0.0, "steps": {}, "advice": ""}


@pytest.mark.parametrize(
    ("longest", "facts", "expected"),
    [
        (READY, StartFacts(service="hello", is_python=True), "`serving deploy hello --preload` forks pods"),
        (READY, StartFacts(service="hello", is_python=True, is_preloaded=True), "what it does after its import"),
        (READY, PLAIN, "do less before it does"),
        (STARTED, PLAIN, "A smaller image"),
        (SCHEDULED, PLAIN, "A node had to be found"),
        (DECIDED, PLAIN, "the system's own work"),
        (UNKNOWN, PLAIN, "did not see these steps"),
    ],
)
def test_advice_depends_on_the_longest_step(longest: str, facts: StartFacts, expected: str) -> None:
    steps = {DECIDED: 0.1, READY: 0.1} | {longest: 0.8}
    advice = summary([{"at_s": 0.0, "took_s": 1.0, "steps": steps}], facts)["advice"]
    assert advice.startswith(f"Of 1.0 s, the median of 1, 800 ms are: {longest}. ")
    assert expected in advice
    assert "`serving scale hello --min 1` keeps a pod" in advice
    assert "Dormant pods" in advice


def test_dormant_pods_are_not_advised_when_enabled() -> None:
    starts = [{"at_s": 0.0, "took_s": 1.0, "steps": {READY: 1.0}}]
    assert "Dormant" not in summary(starts, StartFacts(service="hello", has_dormant=True))["advice"]
