"""Runs a workload under one policy: all functions, distributed over processes.

Functions without shared nodes or a shared prior do not influence each other, so each is simulated alone. The same seed
gives the same result, to the last bit, for any number of processes.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.quantity import MEMORY_ASSUMED_BYTES
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.core.scaling.budget import Allowance, BudgetBook, BudgetDemand, BudgetTenant
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import ADAPTIVE_POLICY
from serving.core.settings.budgets import read_budgets
from serving.tools.simulator.curve import DialPosition, SimulatedPolicy
from serving.tools.simulator.decisions import TimedLimit
from serving.tools.simulator.foresight import Foresight, run_with_foresight
from serving.tools.simulator.modelserver import PromptRun, ServerSpeed
from serving.tools.simulator.nodes import NodePlan, NodeRoom, SharedNodes, run_together
from serving.tools.simulator.pods import PodSet
from serving.tools.simulator.population import run_population
from serving.tools.simulator.results import DurationModel, NodesResult, Quantiles, RevisionResult
from serving.tools.simulator.revision_run import RevisionRun, RunConfig, RunWorld
from serving.tools.simulator.trace import FunctionTrace, PromptTrace
from serving.tools.simulator.workers import end_with_parent

# Number of functions per job: more reduce the traffic between processes, fewer balance the work better.
_CHUNK = 4
NAMESPACE = "default"
"""Namespace of all simulated revisions."""


class Workload(RunWorld, frozen=True, kw_only=True):
    """A workload and its environment, without the policy. Times in seconds.

    ``service`` and ``start`` are the durations of requests and pod starts. ``pods_max`` is the number of pods for which
    the nodes have room, 0 for no limit; ``nodes`` simulates a node group instead. ``shares_prior``: revisions learn
    from each other's pauses between requests. ``speed`` is that of model servers.
    """

    functions: Sequence[FunctionTrace]
    length_s: float
    scaling: ScalingAnnotations = ScalingAnnotations()
    service: DurationModel = DurationModel(default=Quantiles(p50_s=0.25, p99_s=0.25))
    start: DurationModel = DurationModel(default=Quantiles(p50_s=2.0, p99_s=2.0))

    pods_max: int = 0
    """Capacity of the nodes in pods, for all functions together; further pods wait. 0: no limit."""

    shares_prior: bool = True
    """Whether revisions under the adaptive policy learn from each other's gaps, as in a running system."""

    nodes: NodePlan | None = None
    """Nodes of a node group below all functions; None: every pod has a place."""

    speed: ServerSpeed = ServerSpeed()
    """The speed of each model server, for prompts."""

    pod_bytes: int = MEMORY_ASSUMED_BYTES
    """Memory request of each pod, for budgets."""


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    workload: Workload
    config: RunConfig
    foresight: Foresight | None
    book: BudgetBook | None

    @property
    def shares_prior(self) -> bool:
        is_learning = self.config.spec.policy == ADAPTIVE_POLICY and self.foresight is None
        return self.workload.shares_prior and is_learning


# The work of a pool's processes: set before the fork, so that no trace is sent through a pipe.
_JOBS: list[_Job] = []


def run_workload(  # noqa: PLR0913 - what a run is
    workload: Workload,
    policy: SimulatedPolicy,
    *,
    position: DialPosition | None = None,
    seed: int = 1,
    jobs: int = 1,
    on_progress: Callable[[], None] | None = None,
    on_nodes: Callable[[NodesResult], None] | None = None,
) -> list[RevisionResult]:
    """Run every function under a policy at a ``position`` of its dial; call ``on_progress`` once per function.

    ``on_nodes`` receives the history of the nodes, if the workload has nodes. Raises ``InvalidValue`` if the workload
    has nodes or prompts and the policy knows the future.
    """
    if policy.foresight is not None and (workload.nodes is not None or workload.pods_max):
        raise InvalidValue(
            text=f"{policy.foresight} with nodes",
            expected="no nodes: a policy that knows the future has room for every pod",
        )
    if policy.foresight is not None and any(isinstance(function, PromptTrace) for function in workload.functions):
        raise InvalidValue(text=f"{policy.foresight} with prompts", expected="requests with durations")
    settings = policy.change(workload.settings)
    if position is not None:
        settings = position.change(settings)
    world: dict[str, Any] = {name: getattr(workload, name) for name in RunWorld.__struct_fields__}
    spec = resolve(settings, workload.scaling, container_concurrency=workload.concurrency, reachable=True)
    config = RunConfig(**world | {"settings": settings}, spec=spec, seed=seed, policy_of=policy.policy_of)
    is_budgeted = read_budgets(settings.budget).of(NAMESPACE) and policy.foresight is None
    book = BudgetBook(read_budgets(settings.budget)) if is_budgeted else None
    job = _Job(workload=workload, config=config, foresight=policy.foresight, book=book)
    progress = on_progress or _ignore
    is_alone = workload.nodes is None and not workload.pods_max and book is None
    if is_alone and job.shares_prior and len(workload.functions) > 1:
        return _run_with_shared_prior(job, jobs, progress)
    results: dict[int, RevisionResult] = {}
    runs = _results(job, jobs) if workload.nodes is None else enumerate(_run_on_nodes(job, workload.nodes, on_nodes))
    for index, result in runs:
        results[index] = result
        progress()
    # In the order of the functions: sums of floating-point numbers depend on the order.
    return [results[index] for index in range(len(results))]


def _ignore() -> None:
    """Ignore progress."""


def _run_with_shared_prior(job: _Job, jobs: int, on_progress: Callable[[], None]) -> list[RevisionResult]:
    functions, shown = job.workload.functions, 0

    def on_time(share: float) -> None:
        nonlocal shown
        while shown < share * len(functions):
            on_progress()
            shown += 1

    return run_population(
        lambda index, prior: _revision(job, index, prior=prior),
        [function.request_count for function in functions],
        length_s=job.workload.length_s,
        jobs=jobs,
        on_time=on_time,
    )


def _results(job: _Job, jobs: int) -> Iterator[tuple[int, RevisionResult]]:
    """The index of each function with its result, in the order of completion."""
    functions = job.workload.functions
    if job.workload.pods_max or job.book is not None:
        yield from enumerate(_run_on_shared_nodes(job))
        return
    if jobs <= 1 or len(functions) <= 1:
        yield from ((index, _run(job, index)) for index in range(len(functions)))
        return
    _JOBS[:] = [job]
    # The busiest functions first, so that no process still has such a function at the end.
    order = sorted(range(len(functions)), key=lambda index: -functions[index].request_count)
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=end_with_parent) as pool:
        results = pool.map(_run_forked, order, chunksize=_CHUNK if len(order) > _CHUNK * jobs else 1)
        yield from zip(order, results, strict=True)


def _run_forked(index: int) -> RevisionResult:
    return _run(_JOBS[0], index)


def _run_on_shared_nodes(job: _Job) -> Iterator[RevisionResult]:
    """Simulate functions on shared nodes in one process, because they influence each other."""
    nodes = SharedNodes(job.workload.pods_max or sys.maxsize)
    runs = _revisions_on(nodes, job)
    run_together(runs, nodes)
    yield from (run.finish() for run in runs)


def _run_on_nodes(
    job: _Job, plan: NodePlan, on_nodes: Callable[[NodesResult], None] | None
) -> Iterator[RevisionResult]:
    """Simulate functions on nodes of a node group, in one process."""
    from serving.tools.simulator.nodeworld import SimulatedNodes  # noqa: PLC0415 - node groups and scores, where there are nodes only

    nodes = SimulatedNodes(plan, job.workload.length_s)
    runs = _revisions_on(nodes, job)
    run_together(runs, nodes)
    if on_nodes is not None:
        on_nodes(nodes.finish())
    yield from (run.finish() for run in runs)


def _revisions_on(nodes: NodeRoom, job: _Job) -> list[RevisionRun]:
    """The runs of all revisions on the same nodes.

    They share what they learn about pauses between requests (the prior), if the job says so.
    """
    prior = GapPrior(SHIPPED_PRIOR) if job.shares_prior else None
    return [_revision(job, index, nodes=nodes, prior=prior) for index in range(len(job.workload.functions))]


def _run(job: _Job, index: int) -> RevisionResult:
    if job.foresight is None:
        return _revision(job, index).run()
    config, function = _config_of(job, index), job.workload.functions[index]
    arrivals = function.arrivals(config.seed)
    return run_with_foresight(function.name, arrivals, config, kind=job.foresight, until_s=job.workload.length_s)


def _config_of(job: _Job, index: int) -> RunConfig:
    workload, name = job.workload, job.workload.functions[index].name
    limit_of = None if job.book is None else partial(_limit_of, job.book, name, pod_bytes=workload.pod_bytes)
    return msgspec.structs.replace(
        job.config, service=workload.service.of(name), start=workload.start.of(name), limit_of=limit_of
    )


def _revision(job: _Job, index: int, *, nodes: NodeRoom | None = None, prior: GapPrior | None = None) -> RevisionRun:
    workload, function, config = job.workload, job.workload.functions[index], _config_of(job, index)
    if isinstance(function, PromptTrace):
        until_s, speed = workload.length_s, workload.speed
        return PromptRun(function, config, until_s=until_s, speed=speed, nodes=nodes, prior=prior)
    arrivals = function.arrivals(config.seed)
    return RevisionRun(function.name, arrivals, config, until_s=workload.length_s, nodes=nodes, prior=prior)


def _limit_of(book: BudgetBook, name: str, pods: PodSet, *, pod_bytes: int) -> TimedLimit:
    def limit(demand: BudgetDemand, now_s: float) -> Allowance | None:
        ending = pods.ending_count(now_s)
        tenant = BudgetTenant(key=(NAMESPACE, name), pod_bytes=pod_bytes, existing=pods.scale + ending, ending=ending)
        return book.allow(tenant, demand, now_s)

    return limit
