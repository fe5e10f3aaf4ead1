"""Revisions with a shared gap prior; results are independent of the number of processes."""

import array
import math
import os
import random
from itertools import accumulate

import msgspec
import pytest

from serving.core.scaling.adaptive.gaps import GapPrior
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.population import run_population
from serving.tools.simulator.results import RevisionResult
from serving.tools.simulator.revision_run import RevisionRun
from serving.tools.simulator.trace import RecordedFunction
from serving.tools.simulator.workload_run import Workload, run_workload
from tests.unit.tools.simulator.test_revision_run import config


def every(name: str, first_s: float, period_s: float, until_s: float) -> RecordedFunction:
    count = int((until_s - first_s) / period_s)
    arrivals_s = array.array("d", [first_s + period_s * index for index in range(count)])
    return RecordedFunction(name=name, arrivals_s=arrivals_s, durations_s=array.array("d", [0.5]) * count)


def bits(results: list[RevisionResult]) -> str:
    """All results, to the last bit."""
    return repr([[getattr(result, name) for name in result.__struct_fields__ if name != "waits"] for result in results])


def random_population() -> Workload:
    dice = random.Random(7)
    functions = [every(f"f{index}", dice.random() * 50, 30 + dice.random() * 400, 4000.0) for index in range(9)]
    return Workload(functions=functions, length_s=4000.0)


def irregular(name: str, first_s: float) -> RecordedFunction:
    dice = random.Random(name)
    arrivals_s = array.array("d", accumulate((dice.uniform(100, 200) for _ in range(24)), initial=first_s))
    return RecordedFunction(name=name, arrivals_s=arrivals_s, durations_s=array.array("d", [0.5]) * 25)


def neighbours() -> list[RecordedFunction]:
    """Nine functions with gaps of 100 to 200 s; the last one has its first call after an hour."""
    return [*(irregular(f"old{index}", 5.0 * index) for index in range(8)), irregular("new", 3600.0)]


def cold_requests_of_newcomer(*, shares_prior: bool) -> int:
    workload = Workload(functions=neighbours(), length_s=9000.0, shares_prior=shares_prior)
    return run_workload(workload, POLICIES["adaptive"])[-1].cold_requests


def test_shared_prior_reduces_cold_requests_of_a_new_function() -> None:
    assert cold_requests_of_newcomer(shares_prior=True) < cold_requests_of_newcomer(shares_prior=False)


@pytest.mark.parametrize("jobs", [2, 3, 20])
def test_results_are_identical_for_any_number_of_processes(jobs: int) -> None:
    workload = random_population()
    results, several = (run_workload(workload, POLICIES["adaptive"], jobs=count) for count in (1, jobs))
    assert bits(several) == bits(results)
    assert [result.name for result in several] == [function_trace.name for function_trace in workload.functions]


def test_progress_is_called_once_per_function() -> None:
    calls: list[int] = []
    run_workload(random_population(), POLICIES["adaptive"], on_progress=lambda: calls.append(1))
    assert len(calls) == 9


def test_shared_prior_does_not_affect_the_knative_policy() -> None:
    workload = random_population()
    alone = msgspec.structs.replace(workload, shares_prior=False)
    assert bits(run_workload(workload, POLICIES["knative"])) == bits(run_workload(alone, POLICIES["knative"]))


def run_alone(policy: str) -> RevisionRun:
    dice = random.Random(3)
    arrivals = iter([(at_s, math.nan) for at_s in sorted(dice.random() * 3000 for _ in range(90))])
    run_config = config(autoscaler=AutoscalerSettings(policy=policy))
    return RevisionRun("f", arrivals, run_config, until_s=3600.0)


@pytest.mark.parametrize("policy", [ADAPTIVE_POLICY, KNATIVE_POLICY])
def test_stepwise_run_is_identical_to_a_whole_run(policy: str) -> None:
    shares: list[float] = []
    results = run_population(lambda *_: run_alone(policy), [90], length_s=3600.0, jobs=1, on_time=shares.append)
    assert bits(results) == bits([run_alone(policy).run()])
    assert shares == sorted(shares)
    assert shares[-1] <= 1.0


def test_early_exit_of_a_process_raises() -> None:
    def breaks(index: int, _: GapPrior) -> RevisionRun:
        if index == 1:
            os._exit(3)
        return run_alone(KNATIVE_POLICY)

    with pytest.raises(RuntimeError, match="ended early"):
        run_population(breaks, [2, 1], length_s=3600.0, jobs=2, on_time=lambda _: None)
