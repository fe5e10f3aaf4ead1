"""Nodes and Pods as API objects."""

from typing import Any

Json = dict[str, Any]


def node(name: str, *, cpu: str = "4", memory: str = "8Gi", pods: str | None = "10") -> Json:
    """A Node with these allocatable resources."""
    allocatable = {"cpu": cpu, "memory": memory} | ({} if pods is None else {"pods": pods})
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def pod(name: str, *, on: str = "", cpu: str | None = None, memory: str | None = None, phase: str = "Running") -> Json:
    """A Pod with one container, bound to a node or pending."""
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    spec: Json = {"containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}]}
    if on:
        spec["nodeName"] = on
    return {"metadata": {"namespace": "default", "name": name}, "spec": spec, "status": {"phase": phase}}
