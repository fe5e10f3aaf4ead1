"""Bad manifests with the recorded responses of a real API server: ``record_answers.py`` has the calls.

The local API gives the same code, reason and fields; the words differ.
"""

import asyncio
import functools
import json
from typing import Any

from multidict import MultiDict

from serving.core.model.errors import ClusterError
from serving.home.admission.admission import admit
from serving.home.apiserver.requests import Fault, RequestTarget, refusal
from serving.home.apiserver.writing import Sent, create
from serving.home.store.memory import MemoryCluster
from serving.home.store.requester import ADMIN_USER, acting_as
from tests.conformance.record_answers import BY_RESOURCE, MANIFESTS, manifest_of

Json = Any

_SERVICE, _POD = "services.serving.knative.dev spec.template.", "pods "
_SIDECAR = 'spec.initContainers=[{"name": "i", "image": "x", "restartPolicy": "Always", "rea...'
_HOST_PATH = "spec.template.spec.volumes[0].hostPath"
_SECURITY = "spec.template.spec.containers[0].securityContext"
DIFFERENCES: dict[str, Json] = {
    # An admission plug-in of a kube-apiserver answers before its rules do.
    'pods spec.preemptionPolicy="Some"': (422, ["spec.preemptionPolicy"]),
    # A kubelet takes a negative grace period for 1; here it is refused.
    "pods spec.terminationGracePeriodSeconds=-1": (422, ["spec.terminationGracePeriodSeconds"]),
    # A finalizer that is no name has one cause here, and a repetition of it there.
    'pods metadata.finalizers=["a b"]': (422, ["metadata.finalizers"]),
    # The range of Services' addresses is a kube-apiserver's own.
    'services spec.clusterIP="8.8.8.8"': (201, []),
    'services spec.loadBalancerSourceRanges=["x"]': (422, ["spec.loadBalancerSourceRanges[0]"]),
    # A kube-apiserver has made the name a label before it looks.
    f'namespaces metadata.name="{"x" * 59}...': (422, ["metadata.name"]),
    # Sidecars by restartPolicy do not run here.
    f"{_POD}{_SIDECAR}": (422, [f"spec.initContainers[0].{field}" for field in ("readinessProbe", "restartPolicy")]),
    f"{_SERVICE}{_SIDECAR}": (
        422,
        [f"spec.template.spec.initContainers[0].{field}" for field in ("readinessProbe", "restartPolicy")],
    ),
    # Knative's webhook refuses privileged containers; a real API server alone does not.
    f"{_SERVICE}spec.containers.0.securityContext.privileged=true": (422, [f"{_SECURITY}.privileged"]),
    f'{_SERVICE}spec.containers.0.securityContext={{"privileged": true, "allowPrivilegeEscalation": false}}': (
        422,
        [_SECURITY, f"{_SECURITY}.privileged"],
    ),
    # Nor, without the flags of config-features, capabilities that are added or folders of the node.
    f'{_SERVICE}spec.containers.0.securityContext={{"capabilities": {{"add": ["SYS_ADMIN"]}}, "allowPrivilegeEsca...': (
        422,
        [f"{_SECURITY}.capabilities.add"],
    ),
    **{
        f'{_SERVICE}spec.volumes=[{{"name": "v", "hostPath": {{"path": {wrong}}}}}]': (
            422,
            [_HOST_PATH, f"{_HOST_PATH}.{field}"],
        )
        for wrong, field in (('""', "path"), ('"/a/../b"', "path"), ('"/a", "type": "Some"', "type"))
    },
    # Nor ports of containers that end before the others begin.
    f'{_SERVICE}spec.initContainers=[{{"name": "i", "image": "x", "ports": [{{"containerPort": 0}}]...': (
        422,
        [f"spec.template.spec.initContainers[0].ports{field}" for field in ("", "[0].containerPort")],
    ),
    # A kube-apiserver names no field of a number that is too large for its type.
    f'{_SERVICE}spec.containers.0.livenessProbe={{"httpGet": {{"path": "/", "port": 8080}}, "periodSeconds": 21...': (
        422,
        ["spec.template.spec.containers[0].livenessProbe.periodSeconds"],
    ),
}
"""What the local API answers where it differs: code and fields. ``docs/conformance.md`` lists them."""

_REFUSED, _INVALID = 400, 422


@functools.cache
def _recorded() -> dict[str, Json]:
    return {case["name"]: case for case in map(json.loads, MANIFESTS.read_text(encoding="utf-8").splitlines())}


def expected(case: Json) -> Json:
    """All right responses: the recorded one, or the documented difference of the case.

    A template that no pod can be made of is taken by a real API server, which refuses the Deployment later. The local
    API answers at once what the server answers to a Pod with the same mistake, at that field below the template.
    """
    name = case["name"]
    if name in DIFFERENCES:
        code, fields = DIFFERENCES[name]
        return [_found(code, fields)]
    results = [_found(case["code"], case["fields"])]
    if name.startswith(_SERVICE) and case["code"] < _REFUSED:
        pod = _recorded().get(name.replace(_SERVICE, _POD, 1), {"code": 201})
        below = [field.replace("spec.", "spec.template.spec.", 1) for field in pod.get("fields", ())]
        # Limits are taken for requests in a Pod only.
        below = [field for field in below if ".requests[" not in field] or below
        results += [_found(_INVALID, below)] if pod["code"] >= _REFUSED else []
    return results


def _found(code: int, fields: list[str]) -> Json:
    reason = {400: "BadRequest", 422: "Invalid"}.get(code, "")
    return {"code": code, "reason": reason, "fields": sorted(fields)}


def result_of(case: Json) -> Json:
    """Code, reason and fields of the local API."""
    return asyncio.run(_response_to(case))


def agrees(wanted: Json, document: Json) -> bool:
    """Whether a response is one of the right ones. A value of the wrong type in a Pod has no field."""
    shown = [document, {**document, "fields": []}] if len(wanted) > 1 and not wanted[1]["fields"] else [document]
    return any(response in wanted for response in shown)


async def _response_to(case: Json) -> Json:
    kind = BY_RESOURCE[case["resource"]]
    target = RequestTarget(kind=kind, namespace="default" if kind.namespaced else None)
    sent = Sent(MultiDict({"dryRun": "All"}), "application/json", json.dumps(manifest_of(case)).encode())
    cluster = MemoryCluster(admit=functools.partial(admit, is_one_machine=True))
    try:
        with acting_as(ADMIN_USER, manager="conformance"):
            await create(cluster, target, sent)
    except (ClusterError, Fault) as error:
        status = refusal(error, target)
        causes = (status.get("details") or {}).get("causes") or ()
        fields = sorted({cause["field"] for cause in causes})
        return {"code": status["code"], "reason": status["reason"], "fields": fields}
    finally:
        await cluster.close()
    return {"code": 201, "reason": "", "fields": []}
