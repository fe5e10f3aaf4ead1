"""Services of users that lost pods too early or retained them too long."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from serving.autoscaler.entry import RevisionEntry
from serving.core.model.scaledworkload import Schedule
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.revision import deployment_of, revision_of
from serving.core.scaling.scaler.scaler import Scaler
from serving.net.cluster.schedules import schedule_state
from tests.unit.core.scaling.scaler_builders import SETTINGS, World, facts_of

INPUTS = Path(__file__).with_name("inputs")
ZONE = "Europe/Prague"
MONDAY = datetime(2026, 11, 30, 0, 30, tzinfo=ZoneInfo(ZONE))
HOURS = range(0, 24, 4)


def new_revision(template: Any, **metadata: object) -> dict[str, Any]:  # noqa: ANN401 - JSON
    annotations = template.get("metadata", {}).get("annotations", {})
    metadata = {"name": "r-00001", "namespace": "default", "uid": "u", "annotations": annotations, **metadata}
    return {"metadata": metadata, "spec": template["spec"]}


def test_pods_of_the_initial_scale_remain_for_the_scale_down_delay() -> None:
    # knative/serving#10355
    service = yaml.safe_load((INPUTS / "initial_scale_delay.yaml").read_text())
    read = revision_of(new_revision(service["spec"]["template"]), SETTINGS)
    assert read is not None
    world = World(read, facts_of(3))
    world.decide()
    world.live(118, load=0.0)
    assert {outcome.view.present_scale for outcome in world.outcomes} == {3}
    world.live(6, load=0.0)
    assert world.facts.present_scale == 1


class CrashLoop:
    """A revision without a route whose pod crashes repeatedly, and its scaler."""

    def __init__(self, *, was_ready: bool) -> None:
        self.entry = RevisionEntry(10)
        self.was_ready = was_ready
        deployment = deployment_of(
            {
                "metadata": {
                    "name": "r-00001-deployment",
                    "namespace": "default",
                    "labels": {"serving.knative.dev/revision": "r-00001"},
                    "ownerReferences": [{"kind": "Revision", "name": "r-00001", "uid": "u"}],
                },
                "spec": {"replicas": 1},
            }
        )
        assert deployment is not None
        self.entry.deployment = deployment
        self.ready("Unknown")
        facts = self.entry.facts()
        assert facts is not None
        assert self.entry.revision is not None
        self.scaler = Scaler(self.entry.revision, facts, SETTINGS, is_restart=False, now_s=0.0)

    def ready(self, status: str) -> None:
        """Change the condition Ready of the revision."""
        became_ready = {"serving.dev/became-ready": "2026-11-21T00:00:00Z"} if self.was_ready else {}
        labels = {"serving.knative.dev/routingState": "reserve"}
        revision = new_revision({"spec": {}}, annotations=became_ready, labels=labels)
        revision["status"] = {"conditions": [{"type": "Ready", "status": status}]}
        self.entry.revision = revision_of(revision, SETTINGS)

    def decide(self, now_s: float) -> ScalerOutcome:
        facts = self.entry.facts()
        assert facts is not None
        return self.scaler.tick(facts, DecisionCause.PERIOD, now_s)


@pytest.mark.parametrize("was_ready", [False, True])
def test_crash_looping_revision_without_a_route_is_scaled_to_zero(was_ready: bool) -> None:
    # knative/serving#14656
    crashing = CrashLoop(was_ready=was_ready)
    assert crashing.decide(2.0).apply_count is None
    crashing.ready("False")
    outcome = crashing.decide(4.0)
    assert (outcome.apply_count, outcome.to_reserve) == (0, True)


@pytest.mark.parametrize(
    "week",
    yaml.safe_load((INPUTS / "schedules.yaml").read_text()),
    ids=lambda week: f"{week['start']} to {week['end']}",
)
def test_schedule_is_active_from_each_start_to_the_next_end(week: dict[str, str]) -> None:
    # kedacore/keda#4677, #5882
    schedule = Schedule(start=week["start"], end=week["end"], min_count=3, time_zone=ZONE)
    days = [[MONDAY + timedelta(days=day, hours=hour) for hour in HOURS] for day in range(7)]
    states = [["#" if schedule_state(schedule, at.timestamp()).is_active else "." for at in day] for day in days]
    assert " ".join(map("".join, states)) == week["week"]
