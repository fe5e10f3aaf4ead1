"""A pod budget under ``serving up``: three services share two pods."""

import time

import pytest

from tests.e2e.cli_stage import SAMPLE, Stage

# Pods start and drain one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BUDGET = """
apiVersion: v1
kind: ConfigMap
metadata: {name: config-autoscaler, namespace: knative-serving}
data: {budget: %s}
"""
PATIENCE_S = 120.0


def pods(serving: Stage) -> list[str]:
    return serving("get", "pods", "--output", "name").stdout.split()


def until(serving: Stage, wanted: str, *command: str) -> str:
    """Run a command until it prints a text, and check that there are at most two pods."""
    until_s = time.monotonic() + PATIENCE_S
    while wanted not in (stdout := serving(*command).stdout):
        assert time.monotonic() < until_s, stdout
        assert len(pods(serving)) <= 2
        time.sleep(0.2)
    return stdout


def test_services_share_a_budget_of_two_pods(serving: Stage) -> None:
    assert "20 pods, shop=8Gi" in serving("apply", "-f", "-", stdin=BUDGET % "two pods").output
    serving("apply", "-f", "-", stdin=BUDGET % "2 pods")
    for name in ("a", "b", "c"):
        serving("deploy", name, "--command", SAMPLE)
        assert len(pods(serving)) <= 2
    # Each service responds, replacing the pod of an idle service.
    for name in ("a", "b", "c", "a"):
        serving.until_status("Hello", name)
        assert len(pods(serving)) <= 2
    serving("deploy", "large", "--command", SAMPLE, "--min-scale", "3", "--no-wait")
    sentence = until(serving, "the budget of 2 pods allows 2 of 3", "why", "large")
    assert "min-scale of all under it is more than it has" in sentence
    until(serving, "BudgetTooSmall", "get", "revision", "large-00001", "--output", "yaml")
    serving("apply", "-f", "-", stdin=BUDGET % "5 pods")
    until_s = time.monotonic() + PATIENCE_S
    while (
        len(pods(serving)) < 3
        or "BudgetTooSmall" in serving("get", "revision", "large-00001", "--output", "yaml").stdout
    ):
        assert time.monotonic() < until_s
        time.sleep(0.2)
