"""Clouds for the node group daemon whose one machine is the second node: a real kubelet that joins, and ends with its machine.

``ClusterApi`` plays Cluster API's controllers on the API server; ``Provider`` is an external provider of
cluster-autoscaler's protocol.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]

from serving.core.model.objects import Object, annotations_of, condition_of, name_of
from serving.nodes.nodegroup.io.clouds.externalgrpc import METHODS, messages
from tests.node_e2e.stage import NodeStage

SPACE = "serving-machines"
POOL = "extra"
GROUP = f"{SPACE}/{POOL}"
_SERVICE = "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider"
_API = "cluster.x-k8s.io/v1beta1"
_OWNER = "cluster.x-k8s.io/deployment-name"
_BOUND = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-{}-size"
_MARK = "cluster.x-k8s.io/delete-machine"
_PERIOD_S = 1.0


def node_of(stage: NodeStage) -> Object | None:
    """The second node, if it is there."""
    return next((node for node in stage.get("nodes")["items"] if name_of(node) == stage.second), None)


def is_ready(node: Object | None) -> bool:
    """Whether a node takes pods."""
    return node is not None and condition_of(node, "Ready").get("status") == "True"


class ClusterApi:
    """A MachineDeployment of no or one machine.

    ``ended`` are the machines that went, and whether the daemon had marked them.
    """

    def __init__(self, stage: NodeStage) -> None:
        self._stage = stage
        self._count = 0
        self.ended: list[tuple[str, bool]] = []

    def prepare(self) -> None:
        """Define the kinds, and a group without machines."""
        for kind, scale in (("MachineDeployment", True), ("Machine", False)):
            self._stage.apply(_definition(kind, has_scale=scale))
        names = [f"crd/{singular}s.cluster.x-k8s.io" for singular in ("machinedeployment", "machine")]
        self._stage.kubectl("wait", "--for=condition=Established", *names)
        self._stage.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        bounds = {_BOUND.format("min"): "0", _BOUND.format("max"): "1"}
        metadata = {"name": POOL, "namespace": SPACE, "annotations": bounds}
        self._stage.apply(
            {"apiVersion": _API, "kind": "MachineDeployment", "metadata": metadata, "spec": {"replicas": 0}}
        )

    def target(self) -> int:
        """The number of machines that the daemon wants."""
        return int(self._stage.get("machinedeployment", POOL, namespace=SPACE)["spec"]["replicas"])

    async def run(self) -> None:
        """Follow the target until cancelled."""
        while True:
            await asyncio.to_thread(self._reconcile)
            await asyncio.sleep(_PERIOD_S)

    def _reconcile(self) -> None:
        machines = self._stage.get("machines", namespace=SPACE)["items"]
        if not machines and self.target():
            self._count += 1
            metadata = {"name": f"{POOL}-{self._count}", "namespace": SPACE, "labels": {_OWNER: POOL}}
            self._stage.apply({"apiVersion": _API, "kind": "Machine", "metadata": metadata})
            self._stage.change_second("up", LABELS=f"pool={POOL}")
        elif machines and not self.target():
            (machine,) = machines
            self._stage.kubectl("-n", SPACE, "delete", "machine", name_of(machine))
            self._stage.change_second("down")
            self.ended.append((name_of(machine), _MARK in annotations_of(machine)))
        elif machines and "status" not in machines[0] and is_ready(node_of(self._stage)):
            patch = json.dumps(
                {"status": {"nodeRef": {"apiVersion": "v1", "kind": "Node", "name": self._stage.second}}}
            )
            options = ["--subresource=status", "--type=merge", "-p", patch]
            self._stage.kubectl("-n", SPACE, "patch", "machine", name_of(machines[0]), *options)


def _definition(kind: str, *, has_scale: bool) -> Object:
    plural = f"{kind.lower()}s"
    replicas = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version = {
        "name": _API.rpartition("/")[2],
        "served": True,
        "storage": True,
        "subresources": {"status": {}, **({"scale": replicas} if has_scale else {})},
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    group = _API.partition("/")[0]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


class Provider:
    """A provider of one group of no or one machine. ``calls`` are the changes that the daemon asked for."""

    def __init__(self, stage: NodeStage) -> None:
        self._stage = stage
        self._messages = messages()
        self._size = 0
        self.calls: list[str] = []

    def target(self) -> int:
        """The number of machines that the daemon wants."""
        return self._size

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve the protocol; yields the address."""
        server = grpc.aio.server()
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                getattr(self, f"_{name}"),
                request_deserializer=self._messages[f"{name}Request"].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name in METHODS
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(grace=None)

    async def _NodeGroups(self, _: Any, __: Any) -> Any:  # noqa: N802, ANN401 - the protocol's
        return self._messages["NodeGroupsResponse"](nodeGroups=[{"id": GROUP, "minSize": 0, "maxSize": 1}])

    async def _NodeGroupTargetSize(self, _: Any, __: Any) -> Any:  # noqa: N802, ANN401 - as above
        return self._messages["NodeGroupTargetSizeResponse"](targetSize=self._size)

    async def _NodeGroupIncreaseSize(self, request: Any, _: Any) -> Any:  # noqa: N802, ANN401 - as above
        self.calls.append(f"+{request.delta}")
        self._size += request.delta
        await asyncio.to_thread(self._stage.change_second, "up", LABELS=f"pool={POOL}")
        return self._messages["NodeGroupIncreaseSizeResponse"]()

    async def _NodeGroupDeleteNodes(self, request: Any, _: Any) -> Any:  # noqa: N802, ANN401 - as above
        self.calls.append(f"-{','.join(node.name for node in request.nodes)}")
        self._size -= len(request.nodes)
        await asyncio.to_thread(self._stage.change_second, "down")
        return self._messages["NodeGroupDeleteNodesResponse"]()

    async def _NodeGroupForNode(self, request: Any, _: Any) -> Any:  # noqa: N802, ANN401 - as above
        owner = GROUP if request.node.name == self._stage.second else ""
        return self._messages["NodeGroupForNodeResponse"](nodeGroup={"id": owner})
