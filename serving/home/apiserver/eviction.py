"""The eviction subresource of pods, which ``kubectl drain`` uses: a deletion that a client asks the server to decide on.

An eviction that breaks a PodDisruptionBudget is refused with 429, as by a real server (``home/store/budgets.py``).
"""

from collections.abc import Mapping
from typing import Any

from serving.cluster.kinds import POD
from serving.cluster.port import Cluster
from serving.home.apiserver.content import decode_body
from serving.home.apiserver.paths import RequestTarget
from serving.home.apiserver.status import Fault
from serving.home.apiserver.writing import Sent, Written, delete_options_of, delete_with
from serving.home.store.budgets import check_budgets
from serving.model.objects import name_of

_VERSIONS = {"policy/v1", "policy/v1beta1"}


async def evict(cluster: Cluster, target: RequestTarget, sent: Sent) -> Written:
    """Delete the pod as the Eviction in the body says."""
    body = decode_body(sent.data, sent.content_type)
    if not isinstance(body, Mapping) or body.get("kind") != "Eviction" or body.get("apiVersion") not in _VERSIONS:
        raise Fault(400, "the body is not an Eviction of policy/v1")
    named = name_of(dict(body))
    if named not in {"", target.name}:
        raise Fault(400, f"the name of the Eviction ({named}) does not match the name on the URL ({target.name})")
    options: Any = body.get("deleteOptions") or {}
    if not isinstance(options, Mapping):
        raise Fault(400, "deleteOptions is not an object")
    await check_budgets(cluster, await cluster.get(POD, target.one_namespace, target.name))
    await delete_with(cluster, target, delete_options_of(sent.query, dict(options)))
    done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return Written(object=done, status=201)
