"""A test stage for each registered cloud: one group with 3 machines and bounds from 1 to 6.

``MadeCloud`` says what the group is called there, and which machines it has. AWS is moto's server, a real HTTP
endpoint; the external provider is a server written here.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]
import msgspec
import pytest

from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, MACHINE, MACHINE_DEPLOYMENT
from serving.net.cluster.port import Cluster
from serving.nodes.nodegroup.cloud import Cloud, CloudMachine
from serving.nodes.nodegroup.io.clouds.choice import CloudContext, opened_cloud
from serving.nodes.nodegroup.io.clouds.externalgrpc import METHODS, messages
from serving.nodes.nodegroup.localmachines import LOCAL_MACHINES, LocalMachines
from serving.nodes.nodegroup.records import CloudGroup

SIZE = CloudGroup(target_size=3, min_size=1, max_size=6)
SERVICE = "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider"


class MadeCloud(msgspec.Struct, kw_only=True):
    """A cloud under test. ``stranger`` is a machine of another group; None where there is none."""

    cloud: Any
    group: str
    machines: list[CloudMachine]
    unknown: CloudMachine | None = None

    @property
    def port(self) -> Cloud:
        """The cloud as the port."""
        cloud: Cloud = self.cloud
        return cloud


@contextlib.asynccontextmanager
async def opened(cluster: Cluster | None = None, **settings: str) -> AsyncIterator[Any]:
    """The cloud as the daemon opens it."""
    cloud_context = CloudContext(settings=NodeGroupDaemonSettings(**settings), cluster=cluster or MemoryCluster())  # type: ignore[arg-type] # texts all
    async with opened_cloud(cloud_context) as cloud:
        yield cloud


def machine(name: str, provider_id: str = "") -> CloudMachine:
    return CloudMachine(node_name=name, provider_id=provider_id, node={"metadata": {"name": name}})


@contextlib.asynccontextmanager
async def memory() -> AsyncIterator[MadeCloud]:
    async with opened(cloud_provider="memory") as cloud:
        cloud.groups["g"] = SIZE
        cloud.unknown_machines = {"other"}
        yield MadeCloud(cloud=cloud, group="g", machines=[machine(name) for name in "abc"], unknown=machine("other"))


@contextlib.asynccontextmanager
async def local() -> AsyncIterator[MadeCloud]:
    cluster = MemoryCluster()
    machines = LocalMachines(asked_at_s={}, min_size=0, max_size=0, next_number=1)
    data = machines.bounded(min_size=1, max_size=6, now_s=0.0).increased(2, now_s=0.0).data()
    await cluster.create(
        CONFIG_MAP, {"metadata": {"namespace": "knative-serving", "name": LOCAL_MACHINES}, "data": data}
    )
    names = ("node-1", "node-2", "node-3")
    async with opened(cluster, cloud_provider="local") as cloud:
        yield MadeCloud(cloud=cloud, group="local", machines=[machine(name) for name in names])
    await cluster.close()


@contextlib.asynccontextmanager
async def cluster_api() -> AsyncIterator[MadeCloud]:
    cluster = MemoryCluster()
    bounds = {
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "1",
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "6",
    }
    metadata = {"namespace": "default", "name": "workers", "annotations": bounds}
    await cluster.create(MACHINE_DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": 3}})
    for name, owner in (("a", "workers"), ("b", "workers"), ("c", "workers"), ("other", "others")):
        labels = {"cluster.x-k8s.io/deployment-name": owner}
        await cluster.create(MACHINE, {"metadata": {"namespace": "default", "name": f"m-{name}", "labels": labels}})
        status = {"nodeRef": {"name": name}}
        await cluster.patch(MACHINE, "default", f"m-{name}", patch={"status": status}, subresource="status")
    machines = [machine(name) for name in "abc"]
    async with opened(cluster, cloud_provider="cluster-api") as cloud:
        yield MadeCloud(cloud=cloud, group="default/workers", machines=machines, unknown=machine("other"))
    await cluster.close()


@contextlib.contextmanager
def _credentials() -> Iterator[None]:
    values = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "eu-west-1"}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.asynccontextmanager
async def aws() -> AsyncIterator[MadeCloud]:
    server_module = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    await asyncio.to_thread(server.start)
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        with _credentials():
            names = await asyncio.to_thread(_auto_scaling_groups, boto3, url)
            ids, unknown = names
            machines = [machine(f"n{index}", f"aws:///eu-west-1a/{uid}") for index, uid in enumerate(ids)]
            other = machine("other", f"aws:///eu-west-1a/{unknown}")
            async with opened(cloud_provider="aws", aws_region="eu-west-1", aws_endpoint_url=url) as cloud:
                yield MadeCloud(cloud=cloud, group="workers", machines=machines, unknown=other)
    finally:
        await asyncio.to_thread(server.stop)


def _auto_scaling_groups(boto3: Any, url: str) -> tuple[list[str], str]:  # noqa: ANN401 - it has no types
    groups = boto3.client("autoscaling", endpoint_url=url)
    groups.create_launch_configuration(
        LaunchConfigurationName="l", ImageId="ami-12c6146b", InstanceType="t3.small", SecurityGroups=["default"]
    )
    results = []
    for name, count in (("workers", 3), ("others", 1)):
        groups.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchConfigurationName="l",
            MinSize=1,
            MaxSize=6,
            DesiredCapacity=count,
            AvailabilityZones=["eu-west-1a"],
        )
        answer = groups.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"][0]
        results.append([instance["InstanceId"] for instance in answer["Instances"]])
    return results[0], results[1][0]


class Provider:
    """A minimal provider of the externalgrpc protocol."""

    def __init__(self) -> None:
        self.target, self.owners = 3, {"a": "workers", "b": "workers", "c": "workers", "other": "others"}
        self._messages = messages()

    def handlers(self) -> Mapping[str, Any]:
        return {
            name: grpc.unary_unary_rpc_method_handler(
                getattr(self, name),
                request_deserializer=self._messages[f"{name}Request"].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name in METHODS
        }

    async def NodeGroups(self, _: Any, __: Any) -> Any:  # noqa: N802, ANN401 - the protocol's
        groups = [{"id": name, "minSize": 1, "maxSize": 6} for name in ("workers", "others")]
        return self._messages["NodeGroupsResponse"](nodeGroups=groups)

    async def NodeGroupTargetSize(self, _: Any, __: Any) -> Any:  # noqa: N802, ANN401 - as above
        return self._messages["NodeGroupTargetSizeResponse"](targetSize=self.target)

    async def NodeGroupIncreaseSize(self, request: Any, _: Any) -> Any:  # noqa: N802, ANN401 - as above
        self.target += request.delta
        return self._messages["NodeGroupIncreaseSizeResponse"]()

    async def NodeGroupDeleteNodes(self, request: Any, _: Any) -> Any:  # noqa: N802, ANN401 - as above
        for node in request.nodes:
            del self.owners[node.name]
        self.target -= len(request.nodes)
        return self._messages["NodeGroupDeleteNodesResponse"]()

    async def NodeGroupForNode(self, request: Any, _: Any) -> Any:  # noqa: N802, ANN401 - as above
        owner = self.owners.get(request.node.name, "")
        return self._messages["NodeGroupForNodeResponse"](nodeGroup={"id": owner})


@contextlib.asynccontextmanager
async def external_grpc() -> AsyncIterator[MadeCloud]:
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(SERVICE, Provider().handlers())
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with opened(cloud_provider="external-grpc", grpc_address=f"127.0.0.1:{port}") as cloud:
            machines = [machine(name) for name in "abc"]
            yield MadeCloud(cloud=cloud, group="workers", machines=machines, unknown=machine("other"))
    finally:
        await server.stop(None)


STAGES: dict[str, Callable[[], AbstractAsyncContextManager[MadeCloud]]] = {
    "memory": memory,
    "local": local,
    "cluster-api": cluster_api,
    "aws": aws,
    "external-grpc": external_grpc,
}
