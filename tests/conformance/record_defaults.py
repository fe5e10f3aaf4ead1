"""Records what a real API server fills in: ``python -m tests.conformance.record_defaults KUBECONFIG``.

Each case is a right manifest of one kind, as short as users write it. The script sends it as a dry run, and writes the parts of the
answer beside ``metadata`` and ``status`` to ``data/defaults.jsonl``. ``adapters/defaults.py`` holds the local API to them. The file
was recorded from Kubernetes 1.36.2.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.net.cluster.kinds import KINDS, Kind
from serving.net.cluster.sessions import library_client

Json = Any

DATA = Path(__file__).with_name("data") / "defaults.jsonl"
NAMESPACE = "filled-in"
_HEAD = frozenset({"apiVersion", "kind", "metadata", "status"})
# The server chooses these.
_CHOSEN = ("clusterIP", "clusterIPs")
_BY_RESOURCE = {kind.resource: kind for kind in KINDS}

_GET = {"httpGet": {"path": "/", "port": 80}}
_RICH = {
    "name": "web",
    "image": "registry.example.com/web:1",
    "ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}],
    "livenessProbe": {"httpGet": {"port": 80}},
    "readinessProbe": {**_GET, "periodSeconds": 3},
    "startupProbe": {"grpc": {"port": 80}},
    "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
    "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "100m"}},
    "env": [
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ],
    "volumeMounts": [{"name": "words", "mountPath": "/words"}],
}
_VOLUMES = [
    {"name": "words", "configMap": {"name": "words"}},
    {"name": "keys", "secret": {"secretName": "keys"}},
    {"name": "empty"},
    {"name": "about", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    {
        "name": "all",
        "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "words"}}]},
    },
    {"name": "disk", "hostPath": {"path": "/disk"}},
]
_PODS: Mapping[str, Json] = {
    "plain": {"containers": [{"name": "web", "image": "web"}]},
    "rich": {"containers": [_RICH], "initContainers": [{"name": "first", "image": "web:latest"}], "volumes": _VOLUMES},
    "of the host": {
        "hostNetwork": True,
        "containers": [{"name": "web", "image": "web@sha256:" + "0" * 64, "ports": [{"containerPort": 80}]}],
    },
    "by digest and tag": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {"name": "web", "image": "registry:5000/web", "imagePullPolicy": "Never", "terminationMessagePath": "/x"}
        ],
    },
}
_LABELS = {"app": "web"}
_TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


def _deployment(pod: Json, **spec: Json) -> Json:
    return {
        "spec": {
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": pod},
            **spec,
        }
    }


MANIFESTS: Mapping[str, Mapping[str, Json]] = {
    # An admission plug-in mounts a token where this is left out.
    "pods": {name: {"spec": {"automountServiceAccountToken": False, **pod}} for name, pod in _PODS.items()},
    "deployments.apps": {
        **{name: _deployment(pod) for name, pod in _PODS.items() if pod.get("restartPolicy") != "Never"},
        "two at once": _deployment(_PODS["plain"], replicas=2, strategy={"rollingUpdate": {"maxSurge": 1}}),
        "recreated": _deployment(_PODS["plain"], replicas=0, strategy={"type": "Recreate"}, revisionHistoryLimit=3),
    },
    "services": {
        "plain": {"spec": {"selector": _LABELS, "ports": [{"port": 80}]}},
        "balanced": {
            "spec": {"type": "LoadBalancer", "selector": _LABELS, "ports": [{"port": 80, "targetPort": 8123}]}
        },
        "of the node": {"spec": {"type": "NodePort", "selector": _LABELS, "ports": [{"port": 80, "nodePort": 30080}]}},
        "headless": {"spec": {"clusterIP": "None", "selector": _LABELS, "ports": [{"port": 80, "name": "http"}]}},
        "elsewhere": {"spec": {"type": "ExternalName", "externalName": "example.com"}},
        "sticky": {"spec": {"sessionAffinity": "ClientIP", "ports": [{"port": 53, "protocol": "UDP"}]}},
    },
    "configmaps": {"plain": {"data": {"a": "b"}}, "empty": {}},
    "secrets": {"plain": {"stringData": {"a": "b"}}, "typed": {"type": "example.com/x", "data": {"a": "Yg=="}}},
    "serviceaccounts": {"plain": {}},
    "namespaces": {"plain": {}},
    "persistentvolumeclaims": {
        "plain": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    },
    "resourcequotas": {"plain": {"spec": {"hard": {"pods": "3"}}}},
    "limitranges": {
        "most": {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "100m"}}]}},
        "usual": {"spec": {"limits": [{"type": "Container", "default": {"memory": "64Mi"}}]}},
        "of pods": {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "2"}}]}},
    },
    "horizontalpodautoscalers.autoscaling": {
        "plain": {"spec": {"scaleTargetRef": _TARGET, "maxReplicas": 3}},
        "by memory": {
            "spec": {
                "scaleTargetRef": _TARGET,
                "maxReplicas": 3,
                "metrics": [
                    {
                        "type": "Resource",
                        "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 50}},
                    }
                ],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10}},
            }
        },
    },
    "poddisruptionbudgets.policy": {"plain": {"spec": {"selector": {"matchLabels": _LABELS}, "minAvailable": 1}}},
    "leases.coordination.k8s.io": {"plain": {"spec": {"holderIdentity": "me"}}},
    "endpointslices.discovery.k8s.io": {
        "plain": {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]},
        "without ports": {"addressType": "IPv4", "endpoints": []},
    },
    "nodes": {
        "plain": {},
        "cordoned": {"spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}]}},
    },
}


def cases() -> list[Json]:
    """All manifests, each with the name of its case and its resource."""
    return [
        {"name": f"{resource} {name}", "resource": resource, "manifest": manifest_of(resource, parts)}
        for resource, manifests in MANIFESTS.items()
        for name, parts in manifests.items()
    ]


def manifest_of(resource: str, parts: Json) -> Json:
    """A whole manifest."""
    kind = _BY_RESOURCE[resource]
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "web"}, **parts}


def filled_in(answer: Json) -> Json:
    """The parts of an object that do not depend on the server or the time."""
    parts = {key: value for key, value in answer.items() if key not in _HEAD}
    spec = parts.get("spec")
    if answer["kind"] == "Service" and isinstance(spec, dict):
        parts["spec"] = {key: value for key, value in spec.items() if key not in _CHOSEN or value in ("None", ["None"])}
        for port in parts["spec"].get("ports") or ():
            port.pop("nodePort", None)
    return parts


async def record(kubeconfig: str) -> None:
    """Send every manifest and write the responses."""
    async with await library_client(kubeconfig) as client:

        async def send(path: str, body: Json, **query: str) -> Json:
            call = await client.param_serialize(
                "POST",
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await client.call_api(*call)
            return json.loads(await answer.read() or b"{}")

        await send("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        # Without a controller-manager, nothing makes the account that a pod needs.
        await send(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        lines = []
        for case in cases():
            answer = await send(_path(_BY_RESOURCE[case["resource"]]), case["manifest"], dryRun="All")
            if answer.get("kind") == "Status":
                raise SystemExit(f"{case['name']}: {answer.get('message')}")
            lines.append(json.dumps({"name": case["name"], "answer": filled_in(answer)}, ensure_ascii=False))
        DATA.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        sys.stdout.write(f"{len(lines)} answers in {DATA}\n")


def _path(kind: Kind) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    return f"{root}/namespaces/{NAMESPACE}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
