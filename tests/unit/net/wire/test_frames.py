"""Frames: decoding inverts encoding, and rejects anything else."""

import math

import msgspec
import pytest

from serving.core.model.errors import InvalidValue, NewerFormat
from serving.core.model.versions import STAT
from serving.net.wire.frames import (
    ActivatorStats,
    AnnouncedPod,
    PodStat,
    RelayedStat,
    RelayedStats,
    RevisionStat,
    decode_activator_stats,
    decode_announced_pod,
    decode_pod_stat,
    decode_relayed_stats,
    encode_frame,
)

POD = PodStat(at_s=1.5, concurrency=2.0, proxied_concurrency=0.5, request_count=10.0, proxied_request_count=3.0)
ACTIVATOR = ActivatorStats(stats=[RevisionStat(namespace="default", revision="r", concurrency=1.0, request_count=1.0)])
# A pod's name that is no UTF-8.
NO_TEXT = msgspec.msgpack.encode({"at_s": 1, "concurrency": 2, "pod": "pod"}).replace(
    b"\xa3pod\xa3pod", b"\xa3pod\xa3p\xffd"
)


def test_pod_stat_round_trips() -> None:
    assert decode_pod_stat(encode_frame(POD)) == POD


def test_activator_stats_round_trip() -> None:
    assert decode_activator_stats(encode_frame(ACTIVATOR)) == ACTIVATOR


def test_relayed_stats_round_trip() -> None:
    stat = RelayedStat(namespace="default", revision="r", pod="a", is_activator=True, concurrency=1.0)
    for stats in (RelayedStats(stats=[stat, stat]), RelayedStats(stats=[])):
        assert decode_relayed_stats(encode_frame(stats)) == stats
    with pytest.raises(InvalidValue, match="statistics of an autoscaler"):
        decode_relayed_stats(encode_frame(POD))


def test_announced_pod_round_trips_and_newer_format_is_rejected() -> None:
    pod = AnnouncedPod(namespace="default", revision="r", pod="p", address="10.1.0.7:8012")
    assert decode_announced_pod(encode_frame(pod)) == pod
    newer = msgspec.structs.asdict(pod) | {"zone": "a"}
    assert decode_announced_pod(msgspec.msgpack.encode(newer)) == pod, "an unknown field is ignored"
    with pytest.raises(NewerFormat):
        decode_announced_pod(msgspec.msgpack.encode(newer | {"version": STAT + 1}))
    with pytest.raises(InvalidValue, match="an announced pod"):
        decode_announced_pod(encode_frame(POD))


def test_unknown_key_of_pod_stat_is_ignored() -> None:
    frame = msgspec.msgpack.encode({"at_s": 1, "concurrency": 2, "colour": "red"})
    assert decode_pod_stat(frame) == PodStat(at_s=1, concurrency=2)


@pytest.mark.parametrize("value", [-1, 1e13, math.nan, math.inf, "2", None, True])
def test_impossible_amount_is_rejected(value: object) -> None:
    with pytest.raises(InvalidValue):
        decode_pod_stat(msgspec.msgpack.encode({"at_s": 1, "concurrency": value}))


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x80", b"GET / HTTP/1.1\r\n\r\n", encode_frame(ACTIVATOR), NO_TEXT])
def test_invalid_pod_frame_is_rejected_with_its_first_bytes(frame: bytes) -> None:
    with pytest.raises(InvalidValue, match="a statistic of a pod") as caught:
        decode_pod_stat(frame)
    assert caught.value.text == frame[:16].hex()


@pytest.mark.parametrize("frame", [b"", encode_frame(POD), msgspec.msgpack.encode({"stats": [{"namespace": ""}]})])
def test_invalid_activator_frame_is_rejected(frame: bytes) -> None:
    with pytest.raises(InvalidValue, match="statistics of an activator"):
        decode_activator_stats(frame)


def test_older_pod_reports_no_response_times() -> None:
    pod_stat = decode_pod_stat(msgspec.msgpack.encode({"at_s": 1, "concurrency": 2, "request_count": 3}))
    assert (pod_stat.ended_count, pod_stat.response_time_s) == (0.0, 0.0)


def test_response_times_round_trip_in_pod_and_relayed_stats() -> None:
    pod = msgspec.structs.replace(POD, ended_count=8.0, response_time_s=0.25)
    assert decode_pod_stat(encode_frame(pod)) == pod
    stat = RelayedStat(
        namespace="default", revision="r", pod="p", concurrency=1.0, ended_count=8.0, response_time_s=0.25
    )
    assert decode_relayed_stats(encode_frame(RelayedStats(stats=[stat]))).stats == [stat]


def test_frames_have_fields_required_by_previous_version() -> None:
    pod = msgspec.msgpack.decode(encode_frame(PodStat(at_s=0.0, concurrency=0.0)))
    assert pod == {"at_s": 0.0, "concurrency": 0.0}
    revision = RevisionStat(namespace="default", revision="r", concurrency=0.0)
    (stat,) = msgspec.msgpack.decode(encode_frame(ActivatorStats(stats=[revision])))["stats"]
    assert stat == {"namespace": "default", "revision": "r", "concurrency": 0.0}
    relayed = RelayedStat(namespace="default", revision="r", pod="p", concurrency=0.0)
    (stat,) = msgspec.msgpack.decode(encode_frame(RelayedStats(stats=[relayed])))["stats"]
    assert stat == {"namespace": "default", "revision": "r", "concurrency": 0.0, "sender": "p"}


def test_frames_of_previous_version_are_read() -> None:
    activator = {"namespace": "default", "revision": "r", "concurrency": 2.0, "request_count": 1.0}
    windows = {"window_concurrency": None, "window_request_count": 3.0}
    (revision_stat,) = decode_activator_stats(msgspec.msgpack.encode({"stats": [activator | windows]})).stats
    assert revision_stat == RevisionStat(
        namespace="default", revision="r", concurrency=2.0, request_count=1.0, window_request_count=3.0
    )
    counts = {"proxied_concurrency": 0.5, "proxied_request_count": 0.0, "ended_count": 4.0, "response_time_s": 0.0}
    relayed = activator | windows | counts | {"sender": "a", "is_activator": True, "gauges": {"queue": 1.0}}
    (relay,) = decode_relayed_stats(msgspec.msgpack.encode({"stats": [relayed]})).stats
    assert (relay.pod, relay.is_activator, relay.ended_count, relay.gauges) == ("a", True, 4.0, {"queue": 1.0})


def test_current_version_is_omitted_and_newer_version_is_rejected() -> None:
    assert "version" not in msgspec.msgpack.decode(encode_frame(POD))
    pod = {"at_s": 1.0, "concurrency": 2.0, "version": STAT + 1}
    with pytest.raises(NewerFormat, match="upgrade the autoscaler before pods"):
        decode_pod_stat(msgspec.msgpack.encode(pod))
    # Also where the newer form has other types.
    for decode in (decode_pod_stat, decode_activator_stats, decode_relayed_stats):
        with pytest.raises(NewerFormat, match=f"format {STAT + 1}, and this program knows up to {STAT}"):
            decode(msgspec.msgpack.encode({"stats": "columns", "version": STAT + 1}))
