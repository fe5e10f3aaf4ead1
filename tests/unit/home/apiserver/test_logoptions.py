from typing import Any

import pytest

from serving.home.apiserver.logoptions import LogOptions, log_options
from serving.home.apiserver.requests import Fault


def new_pod(*containers: str, **annotations: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): text for name, text in annotations.items()}
    spec = {"containers": [{"name": name} for name in containers]}
    return {"metadata": {"name": "p", "annotations": named or None}, "spec": spec}


def test_single_container_is_the_default() -> None:
    assert log_options(new_pod("a"), {}) == LogOptions(container="a")


def test_all_log_query_parameters_are_parsed() -> None:
    query = {
        "container": "b",
        "follow": "true",
        "previous": "1",
        "timestamps": "true",
        "tailLines": "0",
        "limitBytes": "10",
        "sinceSeconds": "60",
        "sinceTime": "2026-11-21T00:00:00Z",
    }
    assert log_options(new_pod("a", "b"), query) == LogOptions(
        container="b",
        follow=True,
        previous=True,
        timestamps=True,
        tail_line_count=0,
        limit_bytes=10,
        since_s=60,
        since_stamp="2026-11-21T00:00:00Z",
    )


def test_default_container_annotation_selects_container() -> None:
    pod = new_pod("a", "b")
    pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "b"}
    assert log_options(pod, {}).container == "b"


def test_pod_with_several_containers_requires_a_container_name() -> None:
    with pytest.raises(Fault, match=r"a container name must be specified for pod p, choose one of: \[a b\]"):
        log_options(new_pod("a", "b"), {})


def test_unknown_container_is_rejected() -> None:
    with pytest.raises(Fault, match="container c is not valid for pod p"):
        log_options(new_pod("a"), {"container": "c"})


@pytest.mark.parametrize("text", ["-1", "x", "1.5"])
def test_invalid_tail_lines_is_rejected(text: str) -> None:
    with pytest.raises(Fault, match="tailLines"):
        log_options(new_pod("a"), {"tailLines": text})


def test_queue_proxy_is_accepted_as_container() -> None:
    assert log_options(new_pod("app"), {"container": "queue-proxy"}).container == "queue-proxy"


def test_init_container_is_accepted_but_not_the_default() -> None:
    pod = new_pod("app")
    pod["spec"]["initContainers"] = [{"name": "first"}]
    assert log_options(pod, {}).container == "app"
    assert log_options(pod, {"container": "first"}).container == "first"
