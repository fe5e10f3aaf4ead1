"""The control plane under random faults on virtual time, and checks that its checks can fail.

`make simulate-faults SEEDS=1000` runs more seeds. A defect found by a seed gets its own test, because the seed
yields another run after a change of the scenario.
"""

import os
import subprocess
import sys
from typing import Any

import pytest

from serving.net.cluster.kinds import DEPLOYMENT, POD, SERVING_SERVICE
from tests.simulation.activator import SimulatedRequest
from tests.simulation.invariants import at_rest, placement_faults, write_faults
from tests.simulation.world import PODS_PER_NODE, World, seeded
from tests.tidy.sources import ROOT
from tests.virtual_time import run_virtually


def played(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
def test_seeds_hold_all_invariants() -> None:
    runs = (
        ["--storm", "15", "--seeds", "5"],
        ["--storm", "15", "--seeds", "2", "--policy", "adaptive"],
        ["--seed", "113"],
    )
    for arguments in runs:
        done = played(*arguments)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


def test_run_of_a_seed_is_reproducible() -> None:
    first, second = (played("--seed", "7", "--story", "--storm", "20").stdout for _ in range(2))
    assert first.splitlines()[:-1] == second.splitlines()[:-1]
    assert "is killed" in first
    assert " answered" in first


def test_run_without_fixed_hash_seed_is_rejected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.run"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "PYTHONHASHSEED is not 0" in done.stderr


def deployment_object(generation: int, observed: int | None = None, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    template = {"metadata": {"annotations": {"autoscaling.knative.dev/max-scale": "3"}}}
    status = {} if observed is None else {"observedGeneration": observed}
    return {
        "metadata": {"name": "x", "generation": generation},
        "spec": {"template": template, **spec},
        "status": status,
    }


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, deployment_object(1, 2), "observed generation 2 of 1"),
        (deployment_object(2), deployment_object(1), "lost a generation"),
        (deployment_object(2, 2), deployment_object(2, 1), "forgot an observed generation"),
        (None, deployment_object(1, replicas=4), "4 replicas, at most 3"),
    ],
)
def test_write_that_violates_a_rule_is_detected(before: Any, after: Any, words: str) -> None:  # noqa: ANN401 - JSON
    assert [text for text in write_faults(DEPLOYMENT, before, after) if words in text]
    assert list(write_faults(DEPLOYMENT, deployment_object(1, 1), deployment_object(2, 2, replicas=3))) == []


def bound(node: str = "", *, is_owned: bool = True) -> dict[str, Any]:
    owner = {"kind": "Deployment", "name": "d", "uid": "d", "controller": True}
    metadata = {"name": "x", "ownerReferences": [owner] if is_owned else []}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(None, bound(is_owned=False), "has no owner"), (bound("a"), bound("b"), "moved from a to b")],
)
def test_pod_that_violates_a_rule_is_detected(before: Any, after: Any, words: str) -> None:  # noqa: ANN401 - JSON
    assert [text for text in write_faults(POD, before, after) if words in text]
    assert list(write_faults(POD, bound(), bound("a"))) == []


def test_overfilled_node_is_detected() -> None:
    pods = [bound("a") for _ in range(PODS_PER_NODE)]
    assert list(placement_faults([*pods, bound("b")], "a")) == []
    assert list(placement_faults([*pods, bound("a")], "a")) == [f"{PODS_PER_NODE + 1} pods on a"]


def test_unsettled_world_is_detected() -> None:
    async def scenario() -> list[str]:
        world = World(1)
        # No daemon runs, so the user's request is not processed.
        await world.apply("lonely", lambda _: None)
        world.requests.append(SimulatedRequest("lonely", took_s=1.0, at_s=0.0))
        late = SimulatedRequest("lonely", took_s=1.0, at_s=0.0)
        late.outcome, late.ended_s = "200", 1000.0
        world.requests.append(late)
        listing = await world.store.list(SERVING_SERVICE)
        assert len(listing.items) == 1
        return await at_rest(world)

    with seeded(1):
        text = "\n".join(run_virtually(scenario()))
    for words in (
        "has not observed its generation",
        "is not ready",
        "was forgotten",
        "ended after 1000 s",
        "nobody leads",
    ):
        assert words in text
