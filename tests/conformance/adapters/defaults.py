"""Valid manifests with the recorded responses of a real API server (``record_answers.py``).

The local API fills in the same fields, but for those that an admission plug-in or a controller of a cluster sets.
"""

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from multidict import MultiDict

from serving.home.admission.admission import admit
from serving.home.apiserver.requests import RequestTarget
from serving.home.apiserver.writing import Sent, create
from serving.home.store.memory import MemoryCluster
from serving.home.store.requester import ADMIN_USER, acting_as
from tests.conformance.record_answers import BY_RESOURCE, filled_in, manifest_of

Json = Any

# Fields that admission plug-ins add to pods: accounts, tolerations and priorities.
_OF_PLUGINS = ("serviceAccountName", "serviceAccount", "tolerations", "priority", "preemptionPolicy")


def _without_plugins(answer: Json) -> Json:
    return {"spec": {key: value for key, value in answer["spec"].items() if key not in _OF_PLUGINS}}


def _without_taint(answer: Json) -> Json:
    spec = answer["spec"]
    taints = [taint for taint in spec["taints"] if taint["key"] != "node.kubernetes.io/not-ready"]
    spec = {key: value for key, value in spec.items() if key != "taints"} | ({"taints": taints} if taints else {})
    return {"spec": spec} if spec else {}


DIFFERENCES: Mapping[str, Callable[[Json], Json]] = {
    "pods": _without_plugins,
    # A plug-in taints a node that has not reported.
    "nodes": _without_taint,
}
"""What the local API leaves out of an answer, by resource. ``docs/conformance.md`` lists them."""


def expected(case: Json) -> Json:
    """The recorded answer without the documented differences."""
    return DIFFERENCES.get(case["resource"], lambda answer: answer)(case["answer"])


def result_of(case: Json) -> Json:
    """The response of the local API."""
    return asyncio.run(_answer(case))


def agrees(wanted: Json, document: Json) -> bool:
    """Whether both have the same fields. Go writes an empty list as null."""
    return bool(_meant(wanted) == _meant(document))


def _meant(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _meant(item) for key, item in value.items() if item is not None and item != []}
    return [_meant(item) for item in value] if isinstance(value, list) else value


async def _answer(case: Json) -> Json:
    kind = BY_RESOURCE[case["resource"]]
    target = RequestTarget(kind=kind, namespace="default" if kind.namespaced else None)
    sent = Sent(MultiDict({"dryRun": "All"}), "application/json", json.dumps(manifest_of(case)).encode())
    cluster = MemoryCluster(admit=functools.partial(admit, is_one_machine=True))
    try:
        with acting_as(ADMIN_USER, manager="conformance"):
            written = await create(cluster, target, sent)
    finally:
        await cluster.close()
    return filled_in({**written.object, "kind": kind.name})
