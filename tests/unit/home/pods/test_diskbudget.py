from typing import Any

import pytest

from serving.core.model.objects import Object
from serving.home.pods.diskbudget import (
    DiskUse,
    PodOnDisk,
    has_budget,
    is_evicted,
    overuse,
    pod_to_evict,
    surplus_evicted,
)

MEBIBYTE = 2**20


def pod(*limits: object, **spec: Any) -> Object:  # noqa: ANN401 - fields of the API
    containers = [
        {"name": f"c{at}", "resources": {"limits": {} if limit is None else {"ephemeral-storage": limit}}}
        for at, limit in enumerate(limits)
    ]
    return {"spec": {"containers": containers, **spec}}


def volume(limit: str) -> Object:
    return {"name": "v", "emptyDir": {"sizeLimit": limit}}


@pytest.mark.parametrize(
    ("manifest", "wanted"),
    [
        (pod(None), False),
        (pod("many"), False),
        (pod("1Mi"), True),
        (pod(None, volumes=[{"name": "v", "emptyDir": {}}]), False),
        (pod(None, volumes=[volume("0")]), False),
        (pod(None, volumes=[volume("1Mi")]), True),
    ],
)
def test_pod_has_disk_budget_if_a_container_or_volume_is_limited(manifest: Object, *, wanted: bool) -> None:
    assert has_budget(manifest) is wanted


@pytest.mark.parametrize(
    ("manifest", "use", "message"),
    [
        (pod("1Mi"), DiskUse(total_bytes=MEBIBYTE), ""),
        (
            pod("1Mi"),
            DiskUse(total_bytes=MEBIBYTE + 1),
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
        ),
        (
            pod("1Mi", "1Mi"),
            DiskUse(total_bytes=2 * MEBIBYTE + 1),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2097152. ",
        ),
        (
            pod("1Mi", "2Mi"),
            DiskUse(total_bytes=2 * MEBIBYTE, containers={"c0": 2 * MEBIBYTE}),
            'Container c0 exceeded its local ephemeral storage limit "1Mi". ',
        ),
        # One container has no limit, so the sum is not limited.
        (pod("1Mi", None), DiskUse(total_bytes=9 * MEBIBYTE), ""),
        (
            pod(None, volumes=[volume("1Mi")]),
            DiskUse(total_bytes=0, volumes={"v": MEBIBYTE + 1}),
            'Usage of EmptyDir volume "v" exceeds the limit "1Mi". ',
        ),
        (pod(None, volumes=[volume("1Mi")]), DiskUse(total_bytes=0, volumes={"v": MEBIBYTE}), ""),
    ],
)
def test_overuse_message_equals_the_kubelets(manifest: Object, use: DiskUse, message: str) -> None:
    assert overuse(manifest, use) == message


def on_disk(name: str, mebibytes: int, load: float) -> PodOnDisk:
    return PodOnDisk(id=name, use=DiskUse(total_bytes=mebibytes * MEBIBYTE), load=load)


def test_eviction_selects_the_largest_of_the_idlest_pods() -> None:
    pods = [on_disk("busy", 100, 0.5), on_disk("idle", 5, 0.1), on_disk("larger", 50, 0.1), on_disk("empty", 0, 0.0)]
    name, message = pod_to_evict(pods, free_bytes=1024, threshold_bytes=2048, removable_bytes=MEBIBYTE)
    assert name == "larger"
    assert message == "The node was low on resource: ephemeral-storage. Threshold quantity: 2048, available: 1Ki. "


@pytest.mark.parametrize(("free_bytes", "mebibytes"), [(2048, 5), (1024, 0)])
def test_no_pod_is_evicted_above_threshold_or_without_files(free_bytes: int, mebibytes: int) -> None:
    pods = [on_disk("p", mebibytes, 0.0)]
    assert pod_to_evict(pods, free_bytes=free_bytes, threshold_bytes=2048, removable_bytes=MEBIBYTE) == ("", "")


def evicted(name: str, *, owner: str = "", minute: int = 0) -> dict[str, Any]:
    owners = [{"uid": owner}] if owner else []
    metadata = {"namespace": "default", "name": name, "ownerReferences": owners}
    metadata["creationTimestamp"] = f"2026-01-01T00:{minute:02}:00Z"
    return {"metadata": metadata, "status": {"phase": "Failed", "reason": "Evicted"}}


def test_oldest_evicted_pods_beyond_the_owner_limit_are_surplus() -> None:
    pods = [evicted(f"a{minute}", owner="a", minute=minute) for minute in range(5)]
    pods += [evicted("b", owner="b"), evicted("alone"), evicted("other")]
    assert surplus_evicted(pods[::-1], per_owner=3, count_max=9) == [("default", "a0"), ("default", "a1")]


def test_oldest_evicted_pods_beyond_the_total_limit_are_surplus() -> None:
    pods = [evicted(f"p{minute}", minute=minute) for minute in range(4)]
    assert surplus_evicted(pods, per_owner=3, count_max=2) == [("default", "p0"), ("default", "p1")]


def test_other_failed_and_running_pods_are_not_surplus() -> None:
    failed = evicted("failed") | {"status": {"phase": "Failed", "reason": "Error"}}
    running = evicted("running") | {"status": {"phase": "Running"}}
    assert not is_evicted(failed)
    assert surplus_evicted([failed, running, {"metadata": running["metadata"]}], per_owner=0, count_max=0) == []
