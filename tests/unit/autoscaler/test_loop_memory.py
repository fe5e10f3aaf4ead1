"""The loop while the memory of the machine is short, on virtual time: the memory is a file as the kernel writes it."""

from pathlib import Path
from typing import Any

import pytest

from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.core.settings.dormancy import MemorySettings
from serving.net.aio.clock import now_s
from tests.unit.autoscaler.test_loop import KEY, staged
from tests.virtual_time import pass_s, run_virtually

ONLY = {"serving.dev/dormant": "only,after=1s"}


def short_of_memory(folder: Path, available_kib: int, **more: Any) -> AutoscalerSettings:  # noqa: ANN401 - settings
    """Settings of a machine with a million KiB."""
    (folder / "meminfo").write_text(f"MemTotal: 1000000 kB\nMemAvailable: {available_kib} kB\n")
    return AutoscalerSettings(policy=KNATIVE_POLICY, memory=MemorySettings(proc_folder=str(folder)), **more)


@pytest.mark.parametrize("annotations", [{}, ONLY, {"autoscaling.knative.dev/min-scale": "1"}])
def test_a_dormant_pod_goes_while_memory_is_short_and_a_request_brings_it_back(
    tmp_path: Path, annotations: dict[str, str]
) -> None:
    async def run() -> list[object]:
        settings = short_of_memory(tmp_path, 900_000)
        async with staged(
            scale=1, serving_state="Active", pods=["p"], settings=settings, annotations=annotations
        ) as stage:
            await stage.report(5, p=1.0)
            stage.autoscaler.record(KEY, Stat(pod="p", at_s=now_s(), is_dormant=True, idle_s=1.0), StatSource.POD)
            await pass_s(10)
            found: list[object] = [await stage.store.scale()]
            short_of_memory(tmp_path, 40_000)
            found.append(await stage.store.scaled(0))
            await stage.store.remove_pod("p")
            await pass_s(30)
            found += [await stage.store.scale(), await stage.store.serving_state()]
            await stage.store.wake()
            stage.send_report(1.0)
            found.append(await stage.store.scaled(1))
            return [*found, any("memory is short: 39 MiB of 976 are available" in one for one in stage.sentences)]

    assert run_virtually(run()) == [1, 0, 0, "Reserve", 1, True]


def test_running_pods_stay_while_memory_is_short_and_unreadable_memory_removes_nothing(tmp_path: Path) -> None:
    async def run() -> list[int]:
        settings = short_of_memory(tmp_path, 40_000)
        async with staged(scale=2, serving_state="Active", pods=["p", "q"], settings=settings) as stage:
            await stage.report(20, p=5.0, q=6.0)
            found = [await stage.store.scale()]
            (tmp_path / "meminfo").write_text("nothing")
            stage.autoscaler.record(KEY, Stat(pod="q", at_s=now_s(), is_dormant=True), StatSource.POD)
            await stage.report(5, p=5.0)
            found.append(await stage.store.scale())
            short_of_memory(tmp_path, 40_000)
            await stage.report(5, p=5.0)
            return [*found, await stage.store.scale()]

    assert run_virtually(run()) == [2, 2, 1]
