"""Generated pod specs, whose variables, commands and volumes are expanded under a limit of memory.

Each byte of an input adds a part of the spec: a variable that refers to others, a source of variables, or files of a
volume.
"""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.core.model.errors import InvalidValue
from serving.home.admission.kuberules.rules import spec_problems
from serving.home.pods.podplan import app_plan
from serving.home.pods.sources import (
    ENVIRONMENT_BYTES_MAX,
    ByteBudget,
    PodFacts,
    Reference,
    container_environment,
    volume_files,
)

SEEDS = (bytes(range(256)), b"\x00" * 40, b"\x01\x02\x03\x04" * 20)
_MEMORY_BYTES_MAX = 64 * 2**20
_FILES_BYTES_MAX = 2**20
_PARTS_MAX = 400
_SOURCES = {
    Reference(kind="ConfigMap", name="c"): {"BIG": b"x" * 100_000, **{f"K{n}": b"$(V0)" for n in range(50)}},
}


def expand(data: bytes) -> None:
    """Expand the pod spec that some bytes stand for: it has a bounded size, or is refused."""
    pod = _pod(data[:_PARTS_MAX])
    container = pod["spec"]["containers"][0]
    facts, budget = PodFacts(pod=pod), ByteBudget("the files", _FILES_BYTES_MAX)
    with _limited_memory():
        list(spec_problems(pod["spec"], "spec"))
        with contextlib.suppress(InvalidValue):
            variables = container_environment(facts, container, sources=_SOURCES)
            assert sum(len(name) + len(text) for name, text in variables.items()) <= ENVIRONMENT_BYTES_MAX
            plan = app_plan(pod, container, port=1, home="/", variables=variables)
            assert sum(map(len, plan.arguments)) <= ENVIRONMENT_BYTES_MAX
        with contextlib.suppress(InvalidValue):
            files = volume_files(facts, pod["spec"]["volumes"][0], _SOURCES, budget=budget)
            assert sum(len(file.content) for file in files.values()) <= _FILES_BYTES_MAX


def _pod(data: bytes) -> dict[str, Any]:
    variables: list[dict[str, Any]] = [{"name": "V0", "value": "x" * 64}]
    env_from: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    command = ["run"]
    for index, byte in enumerate(data):
        name, other = f"V{index + 1}", f"$(V{max(0, index - byte % 3)})"
        match byte % 6:
            case 0 | 1:
                variables.append({"name": name, "value": other * (1 + byte % 5)})
            case 2:
                reference = {"name": "c", "key": "BIG"} if byte & 8 else {"name": "c", "key": "K0"}
                variables.append({"name": name, "valueFrom": {"configMapKeyRef": reference}})
            case 3:
                env_from.append({"prefix": f"P{byte}_", "configMapRef": {"name": "c"}})
            case 4:
                items.append({"key": "BIG", "path": f"f{index}"})
            case _:
                command.append(other * (1 + byte))
    container = {"name": "c", "image": "i", "command": command, "env": variables, "envFrom": env_from}
    volume = {"name": "v", "configMap": {"name": "c", "items": items}}
    metadata = {"name": "p", "namespace": "n"}
    return {"metadata": metadata, "spec": {"containers": [container], "volumes": [volume]}}


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY_BYTES_MAX, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
