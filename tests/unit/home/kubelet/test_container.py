import asyncio
from pathlib import Path

from serving.home.kubelet.container import (
    ContainerKeeper,
    ContainerSpec,
    ReplacementPauses,
    RestartPauses,
    RestartSettings,
)
from serving.home.processes.orders import StartProcess
from serving.home.processes.processruntime import ProcessRuntime

KUBELET = RestartSettings(pause_first_s=10, pause_max_s=300, sound_s=600)


async def test_a_container_of_a_pod_that_was_deleted_meanwhile_is_not_started(tmp_path: Path) -> None:
    start = StartProcess(pod="p", name="app", environment={}, log=str(tmp_path / "log"), arguments=("true",))
    stop = asyncio.Event()
    stop.set()
    keeper = ContainerKeeper(
        ProcessRuntime(tmp_path / "socket"), ContainerSpec(start=start, on_state=print, on_warning=print), stop
    )
    await asyncio.wait_for(keeper.run(), timeout=60)
    assert keeper.process is None


def test_pauses_double_up_to_a_bound() -> None:
    made = RestartPauses(RestartSettings())
    assert [made.after(1) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_one_that_lived_long_is_started_at_once() -> None:
    made = RestartPauses(RestartSettings())
    assert [made.after(lived_s) for lived_s in (1, 1, 29.9, 30, 1)] == [0, 1, 2, 0, 1]


def test_pauses_of_a_pod_that_fails_for_weeks_stay_bounded() -> None:
    made = RestartPauses(RestartSettings())
    assert max(made.after(1) for _ in range(2_500)) == 60


def test_the_second_pod_in_a_row_that_is_evicted_is_replaced_after_a_pause() -> None:
    made, at_s, pauses = ReplacementPauses(KUBELET), 1000.0, []
    for _ in range(8):
        began_s, at_s = at_s, at_s + 5
        made.evicted("d", began_s=began_s, at_s=at_s)
        pauses.append(made.due_s("d") - at_s)
        at_s = made.due_s("d")
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]
    assert made.due_s("other") == 0


def test_pods_that_are_evicted_together_count_once() -> None:
    made = ReplacementPauses(KUBELET)
    for at_s in (1005.0, 1006.0, 1007.0):
        made.evicted("d", began_s=1000.0, at_s=at_s)
    assert made.due_s("d") == 1005


def test_owners_are_forgotten_after_they_were_quiet() -> None:
    made = ReplacementPauses(KUBELET)
    for at_s in (5.0, 10.0):
        made.evicted("d", began_s=at_s - 5, at_s=at_s)
    assert made.due_s("d") == 20
    made.evicted("other", began_s=0.0, at_s=2000.0)
    assert made.due_s("d") == 0
