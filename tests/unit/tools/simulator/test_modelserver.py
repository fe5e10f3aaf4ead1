"""Model servers: cached prefill, batched decoding, and runs with prompts."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.modelserver import BlockCache, ModelServer, PromptRun, ServerSpeed
from serving.tools.simulator.report import mean_report, report_of
from serving.tools.simulator.results import RevisionResult, RunLog
from serving.tools.simulator.revision_run import RunConfig
from serving.tools.simulator.trace import PromptTrace, RecordedPrompt, TraceWindow, read_trace
from serving.tools.simulator.workload_run import Workload, run_workload

SPEED = ServerSpeed(prompt_tokens_per_s=512.0, step_s=0.0, step_share_s=0.1, cache_blocks=8)
UNTIL_S = 600.0


def prompt(at_s: float, *blocks: int, answer: int = 10) -> RecordedPrompt:
    return RecordedPrompt(at_s, 512 * len(blocks), answer, blocks)


def run_of(prompts: Sequence[RecordedPrompt], *, has_affinity: bool = False, **scaling: object) -> PromptRun:
    settings = AutoscalerSettings(policy=KNATIVE_POLICY)
    spec = resolve(settings, ScalingAnnotations(**scaling), container_concurrency=0, reachable=True)  # type: ignore[arg-type]
    config = RunConfig(
        settings=settings, spec=spec, concurrency=0, has_prefix_affinity=has_affinity, log=RunLog(), probe_delay_s=0.0
    )
    return PromptRun(PromptTrace(name="m", prompts=prompts), config, until_s=UNTIL_S, speed=SPEED)


def served(prompts: Sequence[RecordedPrompt], **options: object) -> RevisionResult:
    run = run_of(prompts, **options)  # type: ignore[arg-type]
    result = run.run()
    assert len(run._config.log.latencies_s) == result.requests == len(prompts)  # type: ignore[union-attr]
    return result


def test_block_cache_evicts_the_least_recently_used() -> None:
    cache = BlockCache(3)
    assert [cache.read(blocks) for blocks in ((1, 2), (1, 3), (1, 4), (2, 3), (1, 4))] == [0, 1, 1, 0, 1]


def test_model_server_reads_prompts_in_order_and_decodes_in_batch() -> None:
    server = ModelServer(SPEED)
    assert server.next_s() == math.inf
    assert server.add(0, prompt(0.0, 1, 2), 0.0) == (0, 2.0)
    assert server.add(1, prompt(0.0, 1, 2, 3), 0.0) == (2, 3.0)
    assert server.advance(2.0) == []
    # One answer of 10 tokens in steps of 0.1 s, until the second prompt has been read.
    assert server.next_s() == 3.0
    assert server.advance(2.5) == []
    assert server.streamed(0, 2.5) == pytest.approx(5.0)
    assert server.advance(3.0) == [0]
    assert server.streamed(1, 3.0) == 0.0
    server.add(2, prompt(3.0, 1, 2, 3), 3.0)
    server.advance(server.next_s())
    # Both in steps of 0.2 s.
    step_s = server.next_s() - 3.0
    assert step_s > 1.0
    server.count(100, 3.0)
    server.count(-100, 5.0)
    assert (server.tokens, server.token_seconds) == (0, 200.0)


def test_prompt_wait_ends_with_the_first_token() -> None:
    result = served([prompt(1.0, 1, 2)], overrides=(("min_scale", 1),), slo="p90-wait<2.5s")
    assert result.prompts is not None
    # The pod is ready at 2 s, and reads for 2 s.
    assert result.prompts.ttft_mean_s == pytest.approx(3.0)
    report = report_of([result], UNTIL_S)
    assert (report.attained_share, mean_report([report, report]).prompts) == (0.0, result.prompts)
    late = served([prompt(5.0, 1, 2)], overrides=(("min_scale", 1),), slo="p90<3.1s")
    assert report_of([late], UNTIL_S).attained_share == 1.0


def test_prefix_affinity_increases_the_cache_hit_share() -> None:
    """Two alternating conversations that do not fit into one server's cache together."""
    prompts = [prompt(10.0 + 10 * turn, *range(turn % 2 * 100, turn % 2 * 100 + 6)) for turn in range(40)]
    fixed = {"overrides": (("min_scale", 2), ("max_scale", 2))}
    by_prefix, without = (served(prompts, has_affinity=has_affinity, **fixed).prompts for has_affinity in (True, False))
    assert by_prefix is not None
    assert without is not None
    assert by_prefix.hit_share == pytest.approx(38 / 40)
    assert without.hit_share < by_prefix.hit_share


def test_scale_down_retains_the_pod_with_the_highest_heat() -> None:
    conversation = [prompt(10.0 + 10 * turn, *range(6)) for turn in range(8)]
    run = run_of([*conversation, prompt(85.0, 99, answer=5000)], has_affinity=True, overrides=(("min_scale", 2),))
    run.run_until(100.0)
    idle, busy = sorted(run.pods.ready, key=lambda pod: pod.in_flight)
    heats = run._heats()
    assert (busy.in_flight, heats[busy.address]) == (1, 0.0)
    assert heats[idle.address] > 0.0
    run._set_scale(1, 100.0)
    assert run.pods.ready == [idle]


def test_token_target_scales_by_prompt_length() -> None:
    short, long = (
        served([prompt(index * 2.0, *range(blocks)) for index in range(60)], load="tokens=1000, concurrency=1000")
        for blocks in (1, 6)
    )
    assert long.pod_starts > short.pod_starts


def test_oracle_rejects_a_workload_of_prompts() -> None:
    workload = Workload(functions=[PromptTrace(name="m", prompts=[prompt(1.0, 1)])], length_s=60.0)
    with pytest.raises(InvalidValue, match="with prompts"):
        run_workload(workload, POLICIES["oracle"])
    (result,) = run_workload(workload, POLICIES["adaptive"])
    assert result.cold_requests == 1


def test_prompt_trace_is_parsed_and_invalid_rows_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "chat.blocks.csv"
    header = "at_s,input_tokens,output_tokens,blocks\n"
    path.write_text(header + "5,1024,64,3 4\n\n1,512,1,3\n")
    (trace,), length_s = read_trace(path, window=TraceWindow(from_s=1.0))
    assert isinstance(trace, PromptTrace)
    assert (trace.name, trace.request_count, length_s) == ("chat", 2, 64.0)
    assert list(trace.arrivals(1)) == [(0.0, 0.0), (4.0, 1.0)]
    assert trace.prompts[1].blocks == (3, 4)
    for row in ("1,2,3", "1,2,x,3", "-1,2,3,4", "1,-2,3,4"):
        path.write_text(header + row + "\n")
        with pytest.raises(SettingsError, match=r"chat\.blocks\.csv:2"):
            read_trace(path)
