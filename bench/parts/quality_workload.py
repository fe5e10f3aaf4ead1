"""Parts of recorded workloads that the policies were not tuned on.

The policies were tuned on the other parts: half of the functions of azure2019-1350, and the first 60 % of the time of the others.
"""

import math
import zlib
from pathlib import Path

import msgspec

from serving.core.settings.queueproxy import QueueProxySettings
from serving.tools.simulator.results import DurationModel, Quantiles
from serving.tools.simulator.trace import ArrivalPlacement, TraceWindow, read_trace
from serving.tools.simulator.workload_run import Workload

RESULTS = Path(__file__).parent.parent / "quality_results"
"""Results that ``docs/benchmarks.md`` shows."""


class TestWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a trace, with the times of requests and pods in seconds."""

    __test__ = False

    title: str
    file: str
    from_s: float = 0.0
    until_s: float = math.inf
    is_halved: bool = False
    """Whether only the functions count that were not tuned on."""

    sample: int | None = None
    """Functions of those, by a hash of their names; None: all."""

    placement: ArrivalPlacement = ArrivalPlacement.UNIFORM
    service_s: float = 0.25
    start_s: float = 2.0
    concurrency: int = 10
    seeds: int = 5


def workload_of(test: TestWorkload, traces: Path) -> Workload:
    """The part of the trace that the policies were not tuned on."""
    functions, length_s = read_trace(
        traces / test.file,
        placement=test.placement,
        window=TraceWindow(from_s=test.from_s, until_s=test.until_s),
    )
    if test.is_halved:
        # The tuned half has an odd checksum.
        functions = [function for function in functions if not zlib.crc32(function.name.encode()) & 1]
    if test.sample is not None:
        functions = sorted(functions, key=lambda one: zlib.crc32(one.name[::-1].encode()))[: test.sample]
    functions = [function for function in functions if function.request_count]
    return Workload(
        functions=functions,
        length_s=length_s,
        service=DurationModel(default=Quantiles(p50_s=test.service_s, p99_s=test.service_s)),
        start=DurationModel(default=Quantiles(p50_s=test.start_s, p99_s=test.start_s)),
        queue_proxy=msgspec.structs.replace(QueueProxySettings(), container_concurrency=test.concurrency),
        concurrency=test.concurrency,
    )
