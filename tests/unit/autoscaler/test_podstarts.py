import msgspec

from serving.autoscaler.podstarts import PodStarts
from serving.scaling.revision import ScaledPod

READY = ScaledPod(name="p", key=("default", "r"), is_ready=True, is_ending=False, deletion_cost="")
STARTING = msgspec.structs.replace(READY, is_ready=False, phase="Pending")
ENDING = msgspec.structs.replace(READY, is_ready=False, is_ending=True)


def test_a_start_lasts_from_the_first_look_until_the_pod_is_ready() -> None:
    starts = PodStarts()
    assert starts.take(STARTING, 10.0, is_gone=False) is None
    assert starts.take(STARTING, 11.0, is_gone=False) is None
    assert starts.take(READY, 14.5, is_gone=False) == 4.5


def test_a_pod_that_is_ready_again_has_not_started_again() -> None:
    starts = PodStarts()
    starts.take(STARTING, 0.0, is_gone=False)
    starts.take(READY, 1.0, is_gone=False)
    starts.take(STARTING, 50.0, is_gone=False)
    assert starts.take(READY, 60.0, is_gone=False) is None


def test_a_pod_that_is_ready_when_it_is_seen_first_is_not_measured() -> None:
    starts = PodStarts()
    assert starts.take(READY, 5.0, is_gone=False) is None
    starts.take(STARTING, 6.0, is_gone=False)
    assert starts.take(READY, 7.0, is_gone=False) is None


def test_a_pod_that_goes_is_forgotten() -> None:
    starts = PodStarts()
    starts.take(STARTING, 0.0, is_gone=False)
    assert repr(starts) == "PodStarts(1 of 1 pods are starting)"
    starts.take(ENDING, 1.0, is_gone=False)
    starts.take(STARTING, 2.0, is_gone=False)
    starts.take(STARTING, 3.0, is_gone=True)
    assert repr(starts) == "PodStarts(0 of 0 pods are starting)"
