import pytest

from serving.core.model.revisionnumbers import PolicyCosts
from serving.core.scaling.adaptive.policy_story import savings_sentence
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY

HOUR_S = 3600.0


def sentence_of(
    pod_seconds: float,
    cold: float,
    knative_pod_seconds: float,
    knative_cold: float,
    *,
    covered_s: float = 24 * HOUR_S,
    running: str = ADAPTIVE_POLICY,
) -> str:
    return savings_sentence(
        PolicyCosts(
            adaptive_pod_seconds=pod_seconds,
            adaptive_cold_requests=cold,
            knative_pod_seconds=knative_pod_seconds,
            knative_cold_requests=knative_cold,
            covered_s=covered_s,
        ),
        running=running,
    )


@pytest.mark.parametrize(
    ("costs", "covered_s", "sentence"),
    [
        (
            (3600.0, 12.0, 6000.0, 31.0),
            24 * HOUR_S,
            "over the last day: 12 cold requests instead of 31, 40 pod-minutes less than under Knative's policy, estimated",
        ),
        (
            (30_000.0, 1.0, 3000.0, 3000.0),
            5.2 * HOUR_S,
            "over the last 5 hours: 1 cold request instead of 3,000, 7.5 pod-hours more than under Knative's policy, estimated",
        ),
        (
            (600.0, 2.0, 601.0, 2.0),
            600.0,
            "over the last 10 minutes: 2 cold requests in both cases, as many pod-seconds as under Knative's policy, estimated",
        ),
        (
            (20.0, 0.0, 62.0, 0.0),
            70.0,
            "over the last minute: 0 cold requests in both cases, 42 pod-seconds less than under Knative's policy, estimated",
        ),
        ((20.0, 0.0, 62.0, 0.0), 30.0, ""),
        ((0.0, 0.0, 0.0, 0.0), 5000.0, ""),
    ],
)
def test_sentence_has_both_costs_and_period(
    costs: tuple[float, float, float, float], covered_s: float, sentence: str
) -> None:
    assert sentence_of(*costs, covered_s=covered_s) == sentence


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        (
            (3600.0, 12.0, 6000.0, 31.0),
            "over the last day: 31 cold requests; the adaptive policy would have had 12, and 40 pod-minutes less than Knative's, estimated",
        ),
        (
            (6000.0, 1.0, 3600.0, 1.0),
            "over the last day: 1 cold request; the adaptive policy would have had as many, and 40 pod-minutes more than Knative's, estimated",
        ),
    ],
)
def test_sentence_under_knative_policy_has_costs_of_adaptive_policy(
    costs: tuple[float, float, float, float], sentence: str
) -> None:
    assert sentence_of(*costs, running=KNATIVE_POLICY) == sentence
