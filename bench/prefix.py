"""Compares ways to choose the pod of a prompt, with recorded prompts and model servers that cache prefixes, on virtual time.

    python bench/prefix.py --trace FILE.blocks.csv.xz [--pods 4 8 16] [--activators 1] [--load 1.1] [--quick] [--json]

The simulator runs the servers (``serving/tools/simulator/modelserver.py``), and the activator's own ``read_prompt`` and
``PrefixTable`` read and choose. A server's cache has room for a tenth of all blocks. ``--load`` is the share of all
servers' time that reading would take without a cache: above 1 reading is the bottleneck. With several activators each
gets a request in turn, and learns alone.

Goals: hits at least 80 % of those of one cache of the same total size; mean time to the first token at most 0.6 of that
with round robin and 0.8 of that with least loaded; no server above 1.25 times the mean tokens in flight.
"""

import random
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.parts.program import exit_code, options_of, show
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.traffic.prefixes import BLOCK_ENDS, BLOCKS_MAX, PrefixTable, Prompt
from serving.tools.simulator.modelserver import BlockCache, PromptRun, ServerSpeed, prompt_of
from serving.tools.simulator.results import PromptFigures, Quantiles
from serving.tools.simulator.revision_run import RunConfig
from serving.tools.simulator.trace import PromptTrace, RecordedPrompt, read_trace

CACHE_PART = 0.1
# Until all answers have ended.
AFTER_S = 3600.0
HITS_MIN, ROUND_ROBIN_MAX, LEAST_LOADED_MAX, LOAD_MAX = 0.8, 0.6, 0.8, 1.25


class RoundRobin(PromptRun):
    """The pods take turns."""


class LeastLoaded(PromptRun):
    """The pods are chosen by their tokens in flight alone."""

    def read(self, prompt: RecordedPrompt) -> Prompt:
        """The tokens of a prompt without its prefixes."""
        return Prompt(tokens=super().read(prompt).tokens)


def run(kind: type[PromptRun], trace: PromptTrace, speed: ServerSpeed, *, pods: int, activators: int) -> PromptFigures:
    """Serve all prompts by a fixed number of pods."""
    settings = AutoscalerSettings()
    scaling = ScalingAnnotations(overrides=(("min_scale", pods), ("max_scale", pods)))
    # More requests at once than there are: a pod always has a free slot, and a limit selects round robin.
    concurrency = trace.request_count
    config = RunConfig(
        settings=settings,
        spec=resolve(settings, scaling, container_concurrency=concurrency, reachable=True),
        concurrency=concurrency,
        has_prefix_affinity=kind is not RoundRobin,
        start=Quantiles(p50_s=1e-9, p99_s=1e-9),
        probe_delay_s=0.0,
    )
    until_s = trace.prompts[-1].at_s + AFTER_S
    figures = kind(trace, config, until_s=until_s, speed=speed, activator_count=activators).run().prompts
    assert figures is not None
    return figures


WAYS: dict[str, type[PromptRun]] = {"round robin": RoundRobin, "least loaded": LeastLoaded, "prefix": PromptRun}


def table_mb() -> float:
    """The memory of a full table."""
    dice, name = random.Random(1), "10.0.0.1:8012"
    tracemalloc.start()
    table = PrefixTable[int]()
    table.set_pods([name])
    for number in range(BLOCKS_MAX // len(BLOCK_ENDS)):
        table.begin(number, Prompt(prefixes=tuple(dice.getrandbits(64) for _ in BLOCK_ENDS)), name)
        table.end(number)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used_bytes / 1e6


def cpu_us(prompts: Sequence[RecordedPrompt], pods: int) -> float:
    """The CPU time of an activator for one prompt, in microseconds."""
    names = [f"10.0.0.{number}:8012" for number in range(pods)]
    table: PrefixTable[int] = PrefixTable()
    table.set_pods(names)
    took_s = 0.0
    for number, recorded in enumerate(prompts):
        body = recorded.body()
        begun_s = time.process_time()
        prompt = prompt_of(body, input_tokens=recorded.input_tokens)
        table.begin(number, prompt, table.choose(prompt, names))
        table.end(number)
        took_s += time.process_time() - begun_s
    return 1e6 * took_s / len(prompts)


def main() -> int:
    """Print the figures; return the exit code."""
    options = options_of(
        __doc__, trace=Path, pods=(4, 8, 16), activators=1, load=1.1, count=10**9, quick={"count": 300}
    )
    (trace,), _ = read_trace(options.trace)
    assert isinstance(trace, PromptTrace)
    prompts = trace.prompts[: options.count]
    trace = msgspec.structs.replace(trace, prompts=prompts)
    blocks = {block for prompt in prompts for block in prompt.blocks}
    room = max(1, int(CACHE_PART * len(blocks)))
    tokens_per_s = sum(prompt.input_tokens for prompt in prompts) / max(1.0, prompts[-1].at_s)
    figures: dict[str, object] = {"requests": len(prompts), "blocks": len(blocks), "table_mb": table_mb()}
    is_met = True
    for count in options.pods:
        shared = BlockCache(count * room)
        shared_share = sum(shared.read(prompt.blocks) for prompt in prompts) / sum(
            len(prompt.blocks) for prompt in prompts
        )
        speed = ServerSpeed(prompt_tokens_per_s=tokens_per_s / count / options.load, cache_blocks=room)
        by_way = [run(kind, trace, speed, pods=count, activators=options.activators) for kind in WAYS.values()]
        for way, result in zip(WAYS, by_way, strict=True):
            figures[f"{count} pods, {way}"] = msgspec.structs.asdict(result)
        robin, least, prefix = by_way
        hits, to_robin, to_least = (
            prefix.hit_share / shared_share,
            prefix.ttft_mean_s / robin.ttft_mean_s,
            prefix.ttft_mean_s / least.ttft_mean_s,
        )
        figures[f"{count} pods"] = (
            f"hits {hits:.2f} of one cache's {shared_share:.3f} (goal {HITS_MIN}), time to the first token {to_robin:.2f} of round "
            f"robin (goal {ROUND_ROBIN_MAX}) and {to_least:.2f} of least loaded (goal {LEAST_LOADED_MAX}), "
            f"load {prefix.load_ratio:.2f} (goal {LOAD_MAX}), {cpu_us(prompts, count):.0f} us of CPU for a prompt"
        )
        is_met &= hits >= HITS_MIN and to_robin <= ROUND_ROBIN_MAX and to_least <= LEAST_LOADED_MAX
        is_met &= prefix.load_ratio <= LOAD_MAX
    show(figures, options)
    return exit_code(options, is_met=is_met)


if __name__ == "__main__":
    raise SystemExit(main())
