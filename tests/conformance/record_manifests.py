"""Records a real API server's responses to bad manifests: ``python tests/conformance/record_manifests.py KUBECONFIG``.

Each case is a manifest that is right but for one field. The script installs the definitions of ``config/crd``, makes a namespace,
sends every manifest as a dry run, and writes ``data/manifests.jsonl``: code, reason, and the fields that the answer names.
``adapters/manifests.py`` holds the local API to them. The file was recorded from Kubernetes 1.36.2.
"""

import asyncio
import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from serving.home.schemas.crds import crd_folder
from serving.net.cluster.kinds import KINDS, Kind
from serving.net.cluster.sessions import library_client

Json = Any
Edit = tuple[str, Json]
"""A path such as "containers.0.image", and the value to set there; DELETED removes it."""

DATA = Path(__file__).with_name("data") / "manifests.jsonl"
NAMESPACE = "manifests"
DELETED = "<deleted>"
_LONG = "x" * 64
_HOOKS: tuple[Json, ...] = ({}, {"exec": {"command": []}})
_HANDLER = {"httpGet": {"path": "/", "port": 8080}}

CONTAINER: tuple[Edit, ...] = (
    *(("name", value) for value in (DELETED, "", "A_b", _LONG, "a.b", 5)),
    *(("image", value) for value in (DELETED, "", " x", 5)),
    *(("imagePullPolicy", value) for value in ("Sometimes", "")),
    *(("command", value) for value in ("ls", [5])),
    ("args", {"a": "b"}),
    *(("terminationMessagePolicy", value) for value in ("Never", 1)),
    ("terminationMessagePath", 1),
    ("workingDir", 1),
    ("stdin", "yes"),
)
RESOURCES: tuple[Edit, ...] = (
    *(("resources.limits", {name: value}) for name in ("cpu", "memory") for value in ("-1", -1, "1Gx", "", "0", "1.5")),
    *(
        ("resources.requests", {name: value})
        for name in ("cpu", "memory", "ephemeral-storage")
        for value in ("-1", "x")
    ),
    ("resources", {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}),
    ("resources", {"limits": {"cpu": "500m"}, "requests": {"cpu": 1}}),
    ("resources.limits", {"foo": "1"}),
    ("resources.limits", {"example.com/gpu": "1.5"}),
    ("resources.requests", {"example.com/gpu": "1"}),
    ("resources.limits", {"a b/c": "1"}),
    ("resources.limits", ["cpu"]),
    ("resources", "1"),
)
ENVIRONMENT: tuple[Edit, ...] = (
    *(("env", [{"name": name, "value": "x"}]) for name in ("", "A=B", "1 A", "A B", "é", "1A", 5)),
    ("env", [{"value": "x"}]),
    ("env", {"A": "B"}),
    ("env", [{"name": "A", "value": 5}]),
    ("env", [{"name": "A", "value": True}]),
    ("env", [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    *(
        ("env", [{"name": "A", "valueFrom": source}])
        for source in (
            {},
            {"configMapKeyRef": {"name": "c", "key": ""}},
            {"configMapKeyRef": {"name": "c", "key": "a/b"}},
            {"configMapKeyRef": {"name": "c"}},
            {"configMapKeyRef": {"name": "", "key": "a"}},
            {"secretKeyRef": {"name": "c", "key": ""}},
            {"secretKeyRef": {"name": "c", "key": "a b"}},
            {"secretKeyRef": {"name": "c", "key": "a"}, "configMapKeyRef": {"name": "c", "key": "a"}},
            {"fieldRef": {"fieldPath": "spec.wrong"}},
            {"fieldRef": {"fieldPath": ""}},
            {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v9"}},
            {"resourceFieldRef": {"resource": "limits.wrong"}},
            {"resourceFieldRef": {"resource": ""}},
        )
    ),
    *(
        ("envFrom", [source])
        for source in (
            {},
            {"configMapRef": {"name": "c"}, "secretRef": {"name": "c"}},
            {"configMapRef": {"name": ""}},
            {"secretRef": {"name": "A_"}},
            {"prefix": "a=b", "configMapRef": {"name": "c"}},
            {"configMapRef": "c"},
        )
    ),
)
PORTS: tuple[Edit, ...] = (
    *(("ports", [{"containerPort": port}]) for port in (0, -1, 65536, 99999, "80", 1.5, 2**33)),
    ("ports", [{}]),
    ("ports", [{"containerPort": 8080, "protocol": "FTP"}]),
    ("ports", [{"containerPort": 8080, "protocol": "UDP"}]),
    *(("ports", [{"containerPort": 8080, "name": name}]) for name in ("UPPER", "a-name-of-16-chrs", "1", "a--b", "-a")),
    ("ports", [{"containerPort": 8080, "hostPort": 70000}]),
    ("ports", [{"containerPort": 8080, "name": "a"}, {"containerPort": 8081, "name": "a"}]),
    ("ports", [{"containerPort": 8080, "hostPort": 80}, {"containerPort": 8081, "hostPort": 80}]),
    ("ports", "8080"),
)
PROBES: tuple[Edit, ...] = (
    *(
        (probe, value)
        for probe in ("readinessProbe", "livenessProbe", "startupProbe")
        for value in (
            {"httpGet": {"path": "/", "port": 8080, "scheme": "FTP"}},
            {"httpGet": {"path": "/", "port": 99999}},
            {"exec": {"command": []}},
            {"tcpSocket": {"port": -1}},
            {**_HANDLER, "tcpSocket": {"port": 80}},
            *({**_HANDLER, field: -1} for field in ("periodSeconds", "failureThreshold")),
            {**_HANDLER, "successThreshold": 2},
        )
    ),
    *(
        ("livenessProbe", value)
        for value in (
            {},
            {"periodSeconds": 5},
            {"httpGet": {"path": "/"}},
            {"httpGet": {"path": "/", "port": "UPPER"}},
            {"httpGet": {"path": "/", "port": ""}},
            {"httpGet": {"path": "", "port": 80}},
            {"httpGet": {"path": "/", "port": 80, "httpHeaders": [{"name": "a b", "value": "c"}]}},
            {"httpGet": {"path": "/", "port": [80]}},
            {"tcpSocket": {"port": 0}},
            {"tcpSocket": {}},
            {"grpc": {"port": 0}},
            {"grpc": {"port": 70000}},
            {"exec": {}},
            {"exec": {"command": "ls"}},
            *({**_HANDLER, field: -1} for field in ("initialDelaySeconds", "timeoutSeconds", "successThreshold")),
            {**_HANDLER, "terminationGracePeriodSeconds": 0},
            {**_HANDLER, "terminationGracePeriodSeconds": -1},
            {**_HANDLER, "periodSeconds": "5"},
            {**_HANDLER, "periodSeconds": 1.5},
            {**_HANDLER, "periodSeconds": 2**31},
        )
    ),
    ("readinessProbe", {**_HANDLER, "terminationGracePeriodSeconds": 5}),
    *(("lifecycle", {hook: value}) for hook in ("preStop", "postStart") for value in _HOOKS),
)
SECURITY: tuple[Edit, ...] = (
    ("securityContext.runAsUser", -1),
    ("securityContext.runAsGroup", -1),
    ("securityContext.runAsUser", "root"),
    ("securityContext.runAsNonRoot", "yes"),
    ("securityContext", {"privileged": True, "allowPrivilegeEscalation": False}),
    ("securityContext.privileged", True),
    ("securityContext.procMount", "Some"),
    ("securityContext.seccompProfile", {"type": "Some"}),
    ("securityContext.seccompProfile", {"type": "Localhost"}),
    ("securityContext.seccompProfile", {"type": "RuntimeDefault", "localhostProfile": "x"}),
    ("securityContext.capabilities", {"add": "ALL"}),
    ("securityContext", {"capabilities": {"add": ["SYS_ADMIN"]}, "allowPrivilegeEscalation": False}),
)
MOUNTS: tuple[Edit, ...] = (
    ("volumeMounts", [{"name": "unknown", "mountPath": "/x"}]),
    ("volumeMounts", [{"name": "v", "mountPath": ""}]),
    ("volumeMounts", [{"name": "v"}]),
    ("volumeMounts", [{"name": "", "mountPath": "/x"}]),
    ("volumeMounts", [{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]),
    *(("volumeMounts", [{"name": "v", "mountPath": "/x", "subPath": path}]) for path in ("../x", "/abs", "a/../b")),
    ("volumeMounts", [{"name": "v", "mountPath": "/x", "subPath": "a", "subPathExpr": "b"}]),
    ("volumeMounts", [{"name": "v", "mountPath": "/x", "subPathExpr": "/b"}]),
    ("volumeMounts", [{"name": "v", "mountPath": "/x", "mountPropagation": "Some"}]),
    ("volumeMounts", [{"name": "v", "mountPath": "/x", "mountPropagation": "Bidirectional"}]),
    ("volumeMounts", [{"name": "v", "mountPath": "/x", "recursiveReadOnly": "Some"}]),
    ("volumeDevices", [{"name": "v", "devicePath": "/x"}]),
)
POD: tuple[Edit, ...] = (
    *(("containers", value) for value in (DELETED, [], "x", ["x"])),
    ("containers", [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]),
    *(("restartPolicy", value) for value in ("Sometimes", "Never")),
    *(("dnsPolicy", value) for value in ("Some", "None")),
    ("dnsConfig", {"nameservers": ["x"]}),
    ("dnsConfig", {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}),
    ("dnsConfig", {"searches": ["a b"]}),
    ("dnsConfig", {"options": [{"name": ""}]}),
    *(("terminationGracePeriodSeconds", value) for value in (-1, "5")),
    *(("activeDeadlineSeconds", value) for value in (0, -1, 5)),
    *(("nodeSelector", value) for value in ({"a b": "x"}, {"a": "x y"}, {"a": 5})),
    *(
        ("tolerations", [value])
        for value in (
            {"key": "a", "operator": "Some"},
            {"key": "a", "operator": "Exists", "effect": "Some"},
            {"key": "a", "operator": "Exists", "value": "x"},
            {"operator": "Equal", "value": "x"},
            {"key": "a b", "operator": "Exists"},
            {"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5},
        )
    ),
    *(("hostAliases", [value]) for value in ({"ip": "x"}, {"ip": "10.0.0.1", "hostnames": ["A_"]}, {"ip": ""})),
    ("imagePullSecrets", "x"),
    *(("subdomain", value) for value in ("A_", _LONG)),
    *(("hostname", value) for value in ("A_", _LONG)),
    ("automountServiceAccountToken", "yes"),
    ("enableServiceLinks", 1),
    ("hostNetwork", "yes"),
    ("shareProcessNamespace", "yes"),
    ("readinessGates", [{"conditionType": "a b"}]),
    ("schedulingGates", [{"name": "a b"}]),
    ("preemptionPolicy", "Some"),
    ("os", {"name": "some"}),
    *(
        ("securityContext", value)
        for value in (
            {"runAsUser": -1},
            {"runAsGroup": -1},
            {"fsGroup": -1},
            {"supplementalGroups": [-1]},
            {"fsGroupChangePolicy": "Some"},
            {"sysctls": [{"name": "a b", "value": "x"}]},
            {"seccompProfile": {"type": "Some"}},
        )
    ),
    *(
        (
            "topologySpreadConstraints",
            [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **value}],
        )
        for value in ({"maxSkew": 0}, {"topologyKey": ""}, {"whenUnsatisfiable": "Some"}, {"minDomains": 0})
    ),
    *(
        ("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": terms})
        for terms in (
            [],
            [{"matchExpressions": [{"key": "a", "operator": "Some"}]}],
            [{"matchExpressions": [{"key": "a", "operator": "In"}]}],
            [{"matchExpressions": [{"key": "a b", "operator": "Exists"}]}],
            [{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}],
            [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["b"]}]}],
        )
    ),
    (
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        [{"weight": 0, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}],
    ),
    ("affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution", [{"topologyKey": ""}]),
    (
        "affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        [{"weight": 101, "podAffinityTerm": {"topologyKey": "zone"}}],
    ),
    *(
        ("initContainers", [{"name": "i", "image": "x", **value}])
        for value in (
            {"name": "app"},
            {"image": ""},
            {"readinessProbe": _HANDLER},
            {"lifecycle": {"preStop": {"exec": {"command": ["ls"]}}}},
            {"restartPolicy": "Some"},
            {"restartPolicy": "Always", "readinessProbe": _HANDLER},
            {"env": [{"name": "A=B"}]},
            {"volumeMounts": [{"name": "unknown", "mountPath": "/x"}]},
            {"ports": [{"containerPort": 0}]},
        )
    ),
    ("ephemeralContainers", [{"name": "e", "image": "x"}]),
)
_SOURCES: tuple[Json, ...] = (
    {"emptyDir": {}, "configMap": {"name": "c"}},
    {"emptyDir": {"sizeLimit": "-1"}},
    {"emptyDir": {"sizeLimit": "x"}},
    {"emptyDir": {"medium": "Some"}},
    {"configMap": {}},
    {"configMap": {"name": "c", "items": [{"key": "", "path": "a"}]}},
    {"configMap": {"name": "c", "items": [{"key": "a", "path": "../a"}]}},
    {"configMap": {"name": "c", "items": [{"key": "a", "path": "/a"}]}},
    {"configMap": {"name": "c", "items": [{"key": "a", "path": ""}]}},
    {"configMap": {"name": "c", "items": [{"key": "a", "path": "a", "mode": 512}]}},
    {"configMap": {"name": "c", "defaultMode": 512}},
    {"configMap": {"name": "c", "defaultMode": "0644"}},
    {"secret": {}},
    {"secret": {"secretName": "s", "defaultMode": -1}},
    {"secret": {"secretName": "s", "items": [{"key": "a", "path": "a/../b"}]}},
    {"hostPath": {"path": ""}},
    {"hostPath": {"path": "/a/../b"}},
    {"hostPath": {"path": "/a", "type": "Some"}},
    {"persistentVolumeClaim": {"claimName": ""}},
    {"persistentVolumeClaim": {"claimName": "A_"}},
    {"projected": {"sources": [{}]}},
    {"projected": {"sources": [{"secret": {"name": "s"}, "configMap": {"name": "c"}}]}},
    {"projected": {"sources": [{"secret": {"name": ""}}]}},
    {"projected": {"sources": [{"serviceAccountToken": {"path": ""}}]}},
    {"projected": {"sources": [{"serviceAccountToken": {"path": "a", "expirationSeconds": 10}}]}},
    {"projected": {"defaultMode": 512, "sources": [{"secret": {"name": "s"}}]}},
    {"downwardAPI": {"items": [{"path": "a"}]}},
    {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.wrong"}}]}},
    {"nfs": {"server": "", "path": "/a"}},
    {"nfs": {"server": "a", "path": "a"}},
)
VOLUMES: tuple[Edit, ...] = (
    *(("volumes", [{"name": name, "emptyDir": {}}]) for name in ("", "A", _LONG)),
    ("volumes", [{"emptyDir": {}}]),
    ("volumes", [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]),
    *(("volumes", [{"name": "v", **source}]) for source in _SOURCES),
)
METADATA: tuple[Edit, ...] = (
    *(("metadata.name", value) for value in ("", "A", "a_b", "x" * 254, "-a", 5)),
    *(("metadata.labels", value) for value in ({"a b": "x"}, {"a": "x y"}, {"a": _LONG}, {"a": 5}, {"": "x"}, ["a"])),
    *(("metadata.annotations", value) for value in ({"a b": "x"}, {"a": 5}, {"a": "x" * 2**18}, {"": "x"})),
    ("metadata.finalizers", ["a b"]),
    ("metadata.ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": "x"}]),
    ("metadata.ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "a"}]),
    ("metadata.generateName", 5),
    ("metadata.creationTimestamp", "yesterday"),
)
_PORT = {"port": 80}
_PORT_LISTS: tuple[Json, ...] = ([], [{}], [_PORT, _PORT], [{"port": 0}], [{"port": 70000}], "80")
OBJECTS: tuple[tuple[str, tuple[Edit, ...]], ...] = (
    (
        "configmaps",
        (
            *(
                ("data", value)
                for value in ({"a": 5}, {"a": True}, {"a b": "x"}, {"": "x"}, {"..": "x"}, {"x" * 254: "x"}, "x")
            ),
            *(("binaryData", value) for value in ({"a": "not base64!"}, {"a b": "eA=="}, {"k": "eA=="}, {"a": 5})),
            ("immutable", "yes"),
        ),
    ),
    (
        "secrets",
        (
            *(
                ("data", value)
                for value in ({"a": "not base64!"}, {"a": "abc"}, {"a b": "eA=="}, {"a": 5}, {"": "eA=="})
            ),
            *(("stringData", value) for value in ({"a": 5}, {"a b": "x"}, ["a"])),
            ("immutable", 1),
            ("type", 5),
            *(
                (".", {"type": f"kubernetes.io/{name}", "data": {}})
                for name in ("dockerconfigjson", "dockercfg", "basic-auth", "ssh-auth", "tls", "service-account-token")
            ),
            (".", {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "eA=="}}),
        ),
    ),
    (
        "services",
        (
            *(("spec.ports", value) for value in _PORT_LISTS),
            *(("spec.ports", [{**_PORT, "protocol": value}]) for value in ("FTP", "tcp")),
            *(("spec.ports", [{**_PORT, "targetPort": value}]) for value in (0, 70000, "UPPER", "", -1)),
            *(("spec.ports", [{**_PORT, "nodePort": value}]) for value in (80, 30000)),
            ("spec.ports", [{"name": "a", **_PORT}, {"name": "a", "port": 81}]),
            ("spec.ports", [{"name": "A_", **_PORT}]),
            ("spec.ports", [{"port": "80"}]),
            *(("spec.type", value) for value in ("Some", "ExternalName", "LoadBalancer")),
            (".", {"spec": {"type": "ExternalName", "externalName": "A_"}}),
            *(("spec.sessionAffinity", value) for value in ("Some", "ClientIP")),
            *(("spec.clusterIP", value) for value in ("x", "None", "8.8.8.8")),
            *(("spec.selector", value) for value in ({"a b": "x"}, {"a": "x y"}, {"a": 5})),
            ("spec.externalIPs", ["x"]),
            ("spec.loadBalancerSourceRanges", ["x"]),
            ("spec.externalTrafficPolicy", "Some"),
            ("spec.internalTrafficPolicy", "Some"),
            ("spec.ipFamilyPolicy", "Some"),
            ("spec.ipFamilies", ["IPv5"]),
            *(("metadata.name", value) for value in ("1a", "a.b", _LONG)),
        ),
    ),
    (
        "deployments.apps",
        (
            *(("spec.replicas", value) for value in (-1, "1", 1.5)),
            *(("spec.selector", value) for value in (DELETED, {}, {"matchLabels": {"app": "other"}})),
            ("spec.selector", {"matchLabels": {"a b": "x"}}),
            *(
                ("spec.selector", {"matchExpressions": [{"key": "app", **value}]})
                for value in ({"operator": "Some"}, {"operator": "In"}, {"operator": "Exists", "values": ["a"]})
            ),
            ("spec.template", DELETED),
            ("spec.template.metadata", DELETED),
            ("spec.template.metadata.labels", {"app": "a", "b": "x y"}),
            ("spec.template.metadata.annotations", {"a b": "x"}),
            ("spec.template.spec", DELETED),
            ("spec.minReadySeconds", -1),
            ("spec.progressDeadlineSeconds", 0),
            (".", {"spec.minReadySeconds": 600}),
            ("spec.revisionHistoryLimit", -1),
            *(
                ("spec.strategy", value)
                for value in (
                    {"type": "Some"},
                    {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}},
                    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}},
                    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "x"}},
                    {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "101%"}},
                    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": -1}},
                )
            ),
            ("spec", DELETED),
        ),
    ),
    (
        "horizontalpodautoscalers.autoscaling",
        (
            ("spec.minReplicas", -1),
            ("spec.maxReplicas", 0),
            ("spec.minReplicas", 9),
            ("spec.scaleTargetRef.name", ""),
            ("spec.scaleTargetRef.kind", ""),
        ),
    ),
    ("namespaces", tuple(("metadata.name", value) for value in ("A", "a.b", _LONG, "a_b"))),
    (
        "poddisruptionbudgets.policy",
        (("spec", {"minAvailable": 1, "maxUnavailable": 1}), ("spec.minAvailable", -1), ("spec.minAvailable", "x%")),
    ),
    (
        "leases.coordination.k8s.io",
        (("spec.leaseDurationSeconds", 0), ("spec.holderIdentity", ""), ("spec.leaseTransitions", -1)),
    ),
    (
        "endpointslices.discovery.k8s.io",
        (
            ("addressType", "Some"),
            ("addressType", DELETED),
            ("endpoints", [{"addresses": []}]),
            ("endpoints", [{"addresses": ["x"]}]),
            ("ports", [{"name": "A_", "port": 80}]),
            ("ports", [{"port": 80}, {"port": 81}]),
        ),
    ),
    (
        "services.serving.knative.dev",
        (
            ("spec", DELETED),
            ("spec.template", "x"),
            *(("spec.template.spec.containerConcurrency", value) for value in (-1, 1001, "5", 1.5)),
            *(("spec.template.spec.timeoutSeconds", value) for value in (-1, 3601, "5")),
            ("spec.template.spec.responseStartTimeoutSeconds", 400),
            ("spec.template.spec.idleTimeoutSeconds", -1),
            *(("spec.template.metadata.name", value) for value in ("hello", "other-1", "hello-A")),
            *(
                ("spec.traffic", value)
                for value in (
                    [{"percent": 50}],
                    [{"percent": 101}],
                    [{"percent": -1}],
                    [{"percent": 100, "revisionName": "hello-1", "latestRevision": True}],
                    [{"percent": 50, "tag": "a"}, {"percent": 50, "tag": "a"}],
                    [{"percent": 100, "tag": "A_"}],
                    [{"percent": 100, "configurationName": "x"}],
                    [{"percent": "100"}],
                    "x",
                )
            ),
        ),
    ),
    (
        "routes.serving.knative.dev",
        (("spec.traffic", [{"percent": 100}]), ("spec.traffic", [{"configurationName": "a", "percent": 99}])),
    ),
    ("domainmappings.serving.knative.dev", (("spec", {}), ("spec.ref", {"kind": "Service"}), ("spec.ref.name", ""))),
)
_CONTAINERS = (CONTAINER, RESOURCES, ENVIRONMENT, PORTS, PROBES, SECURITY, MOUNTS)
_POD_SPEC: Json = {"containers": [{"name": "app", "image": "x"}], "volumes": [{"name": "v", "emptyDir": {}}]}
BASES: dict[str, Json] = {
    "pods": {"spec": _POD_SPEC},
    "deployments.apps": {
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": _POD_SPEC},
        }
    },
    "services.serving.knative.dev": {
        "spec": {
            "template": {
                "spec": {
                    "containers": [{"image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                }
            }
        }
    },
    "configmaps": {"data": {"k": "v"}},
    "secrets": {"data": {"k": "dg=="}},
    "services": {"spec": {"ports": [_PORT], "selector": {"app": "a"}}},
    "namespaces": {},
    "horizontalpodautoscalers.autoscaling": {
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}, "maxReplicas": 3}
    },
    "poddisruptionbudgets.policy": {"spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1}},
    "leases.coordination.k8s.io": {"spec": {"holderIdentity": "a"}},
    "endpointslices.discovery.k8s.io": {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]},
    "routes.serving.knative.dev": {"spec": {"traffic": [{"configurationName": "a", "percent": 100}]}},
    "domainmappings.serving.knative.dev": {
        "spec": {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "a"}}
    },
}
_BY_RESOURCE = {kind.resource: kind for kind in KINDS}
# Every how many-eth edit of a pod is also made in the template of a Deployment: the server has one function for both.
_DEPLOYMENT_STRIDE = 4


def cases() -> Iterator[Json]:
    """All manifests, each with the name of its case and its resource."""
    seen: dict[str, int] = {}
    for resource, path, value in edits():
        shown = json.dumps(value)
        name = f"{resource} {path}={shown if len(shown) <= 60 else shown[:60] + '...'}"
        seen[name] = seen.get(name, 0) + 1
        number = f" #{seen[name]}" if seen[name] > 1 else ""
        yield {"name": name + number, "resource": resource, "manifest": edited(resource, path, value)}


def edits() -> Iterator[tuple[str, str, Json]]:
    """Each case as a resource, a path in its manifest, and the value to set there."""
    in_pod = [
        *((f"spec.containers.0.{path}", value) for group in _CONTAINERS for path, value in group),
        *((f"spec.{path}", value) for path, value in (*POD, *VOLUMES)),
    ]
    yield "pods", ".", {}
    yield from (("pods", path, value) for path, value in (*in_pod, *METADATA))
    for resource, stride in (("deployments.apps", _DEPLOYMENT_STRIDE), ("services.serving.knative.dev", 1)):
        yield resource, ".", {}
        yield from ((resource, f"spec.template.{path}", value) for path, value in in_pod[::stride])
    for resource, own in OBJECTS:
        yield resource, ".", {}
        yield from ((resource, path, value) for path, value in own)


def edited(resource: str, path: str, value: Json) -> Json:
    """A right manifest with one field changed; "." merges a whole object into it."""
    kind = _BY_RESOURCE[resource]
    name = "a.example.com" if kind.name == "DomainMapping" else "hello"
    whole: Json = copy.deepcopy(
        {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}, **BASES[resource]}
    )
    if path == ".":
        for key, one in value.items():
            _set(whole, key.split("."), one)
    else:
        _set(whole, path.split("."), value)
    return whole


def _set(whole: Json, path: list[str], value: Json) -> None:
    for key in path[:-1]:
        whole = whole[int(key)] if isinstance(whole, list) else whole.setdefault(key, {})
    if value == DELETED:
        whole.pop(path[-1], None)
    else:
        whole[path[-1]] = value


async def record(kubeconfig: str) -> None:
    """Send every manifest and write the responses."""
    async with await library_client(kubeconfig) as client:

        async def send(path: str, body: Json, **query: str) -> tuple[int, Json]:
            call = await client.param_serialize(
                "POST",
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await client.call_api(*call)
            return answer.status, json.loads(await answer.read() or b"{}")

        for file in sorted(crd_folder().glob("*.yaml")):
            await send("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(file.read_text()))
        await send("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        # Without a controller-manager, nothing makes the account that a pod needs.
        await send(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        lines = []
        for case in cases():
            code, answer = await send(_path(_BY_RESOURCE[case["resource"]]), case["manifest"], dryRun="All")
            reason = answer.get("reason", "") if code >= 400 else ""
            causes = (answer.get("details") or {}).get("causes") or () if code >= 400 else ()
            # "<nil>" is no field: it says that rules were skipped because the schema does not hold.
            fields = sorted({cause.get("field", "") for cause in causes} - {"<nil>"})
            found = {"name": case["name"], "code": code, "reason": reason, "fields": fields}
            lines.append(json.dumps(found, ensure_ascii=False))
        DATA.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        sys.stdout.write(f"{len(lines)} answers in {DATA}\n")


def _path(kind: Kind) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    return f"{root}/namespaces/{NAMESPACE}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
