from collections.abc import Callable
from typing import Any

import msgspec

from serving.autoscaler.io.senders import (
    LATE_AFTER_S,
    ActivatorSender,
    AutoscalerSender,
    LatenessState,
    PodSender,
    Record,
    Sender,
    ServerCounts,
    is_late,
)
from serving.core.model.knative import RevisionKey
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.net.wire.frames import AnnouncedPod, PodStat, encode_frame

Recorded = list[tuple[RevisionKey, Stat, StatSource]]
REVISION = {"namespace": "default", "revision": "r"}


def late(*frames: tuple[float, float]) -> list[bool]:
    state, results = LatenessState(), []
    for sent_s, received_s in frames:
        state, result = is_late(state, sent_s=sent_s, received_s=received_s)
        results.append(result)
    return results


def test_clock_offset_makes_no_frame_late() -> None:
    assert late((1e9, 5.0), (1e9 + 1, 6.01), (1e9 + 2, 7.0)) == [False, False, False]


def test_delayed_frame_is_late() -> None:
    assert late((100.0, 7.0), (101.0, 12.1)) == [False, True]
    assert late((100.0, 7.0), (101.0, 8.0 + LATE_AFTER_S)) == [False, False]


def test_burst_after_a_pause_is_late_except_its_newest_frames() -> None:
    frames = [(100.0 + second, 107.0) for second in range(8)]
    assert late((99.0, 99.0), *frames) == [False, True, True, True, True, False, False, False, False]


def test_lateness_of_a_frame_does_not_affect_later_frames() -> None:
    assert late((0.0, 0.0), (1.0, 9.0), (9.1, 9.1), (2.0, 9.2), (9.3, 9.3)) == [False, True, False, True, False]


def test_clock_set_back_is_accepted_after_four_late_frames() -> None:
    frames = [(float(second - 3600), float(second)) for second in range(1, 8)]
    assert late((0.0, 0.0), *frames) == [False, True, True, True, True, False, False, False]


def test_clock_set_forward_is_accepted_immediately() -> None:
    assert late((0.0, 0.0), (3601.0, 1.0), (3602.0, 2.0)) == [False, False, False]


async def test_late_dormant_report_is_recorded() -> None:
    results: Recorded = []
    sender = PodSender(ServerCounts(), lambda *arguments: results.append(arguments), revision=("default", "r"), pod="p")
    for at_s, is_dormant in ((1000.0, False), (0.0, False), (0.0, True)):
        sender.handle(encode_frame(PodStat(at_s=at_s, concurrency=0.0, is_dormant=is_dormant)))
    assert [stat.is_dormant for _, stat, _ in results] == [False, True]


def test_server_counts_are_exported_under_metric_names() -> None:
    assert ServerCounts(frames=3).numbers["stats_frames_total"] == 3


async def recorded(make: Callable[[Record], Sender], frame: dict[str, Any]) -> tuple[RevisionKey, Stat, StatSource]:
    results: Recorded = []
    make(lambda *arguments: results.append(arguments)).handle(msgspec.msgpack.encode(frame))
    (call,) = results
    return call


async def test_pod_frame_cannot_set_name_time_or_window_fields() -> None:
    frame = {"at_s": 7.0, "concurrency": 2.0, "proxied_concurrency": 9.0, "gauges": {"queue": 3.0}}
    forged = {"pod": "other", "sender": "other", "window_concurrency": 50.0, "window_request_count": 50.0}
    key, stat, source = await recorded(
        lambda record: PodSender(ServerCounts(), record, revision=("default", "r"), pod="p"), frame | forged
    )
    assert (key, source, stat.pod) == (("default", "r"), StatSource.POD, "p")
    assert stat.at_s != frame["at_s"]
    assert (stat.concurrency, stat.proxied_concurrency, stat.gauges) == (2.0, 2.0, {"queue": 3.0})
    assert (stat.window_concurrency, stat.window_request_count) == (None, None)


async def test_activator_frame_sets_only_load_fields() -> None:
    forged = {"pod": "other", "at_s": 7.0, "proxied_concurrency": 1.0, "ended_count": 1.0, "gauges": {"queue": 3.0}}
    frame = {"stats": [REVISION | {"concurrency": 2.0, "request_count": 4.0, "window_concurrency": 1.0} | forged]}
    key, stat, source = await recorded(lambda record: ActivatorSender(ServerCounts(), record, name="a"), frame)
    assert (key, source) == (("default", "r"), StatSource.ACTIVATOR)
    assert stat == Stat(pod="a", at_s=stat.at_s, concurrency=2.0, request_count=4.0, window_concurrency=1.0)
    assert stat.at_s != forged["at_s"]


async def test_relayed_report_preserves_its_sender_and_is_stamped_on_receipt() -> None:
    pod = REVISION | {"pod": "p", "address": "10.1.0.7:8012"}
    announced: list[AnnouncedPod] = []
    frame: dict[str, Any] = {
        "stats": [REVISION | {"sender": "p", "concurrency": 2.0, "at_s": 7.0, "ended_count": 3.0}],
        "announced": [pod],
    }
    key, stat, source = await recorded(
        lambda record: AutoscalerSender(ServerCounts(), record, name="b", announce=announced.append), frame
    )
    assert (key, source, stat.pod, stat.ended_count) == (("default", "r"), StatSource.POD, "p", 3.0)
    assert announced == [AnnouncedPod(namespace="default", revision="r", pod="p", address="10.1.0.7:8012")]
    assert stat.at_s != frame["stats"][0]["at_s"]
