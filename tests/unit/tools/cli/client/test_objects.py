import pytest

from serving.core.model.objects import Object
from serving.tools.cli.client.objects import missing_pods_reason, superseded_failures


def revision(service: str, generation: int, status: str) -> Object:
    labels = {
        "serving.knative.dev/service": service,
        "serving.knative.dev/configurationGeneration": str(generation),
    }
    return {
        "metadata": {"name": f"{service}-{generation:05}", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }


def test_failed_revision_with_a_newer_one_is_superseded() -> None:
    results = superseded_failures(
        [
            revision("a", 9, "False"),
            revision("a", 10, "True"),
            revision("b", 1, "True"),
            revision("b", 2, "False"),
            revision("c", 1, "Unknown"),
            revision("c", 2, "True"),
        ]
    )
    assert results == {"a-00009"}


def test_superseded_failures_of_no_revisions_are_empty() -> None:
    assert superseded_failures([]) == frozenset()


@pytest.mark.parametrize(
    ("served", "reason"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "it is at zero"),
        ({"kind": "ScaledWorkload"}, "it is at zero"),
        ({}, "it has no revision yet"),
        ({"status": {"latestCreatedRevisionName": "a-00001"}}, "it is not ready"),
    ],
)
def test_service_without_pods_is_at_zero_only_if_ready(served: Object, reason: str) -> None:
    assert missing_pods_reason(served) == reason
