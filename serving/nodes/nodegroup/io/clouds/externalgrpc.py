"""Any cloud with a provider for cluster-autoscaler's externalgrpc protocol (extra ``grpc``: grpcio and protobuf).

A group is the id of one of the provider's node groups. The module defines the messages at run time, so there is no
generated code. The provider's DeleteNodes also lowers the target. A node that the provider does not know counts as
gone.

Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/externalgrpc/protos.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.core.model.errors import CloudRefused, CloudUnavailable, Problem, SettingsError
from serving.core.model.objects import annotations_of, labels_of
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.nodes.nodegroup.cloud import CloudMachine, Deletion
from serving.nodes.nodegroup.records import CloudGroup

if TYPE_CHECKING:
    import grpc  # type: ignore[import-untyped]  # it has no types

_PACKAGE = "clusterautoscaler.cloudprovider.v1.externalgrpc"
_SERVICE = f"{_PACKAGE}.CloudProvider"
_TEXT, _NUMBER = "string", "int32"
# Fields of each message as (name, number, type, is repeated); "map" is a map of texts.
_MESSAGES: Mapping[str, tuple[tuple[str, int, str, bool], ...]] = {
    "NodeGroup": (
        ("id", 1, _TEXT, False),
        ("minSize", 2, _NUMBER, False),
        ("maxSize", 3, _NUMBER, False),
        ("debug", 4, _TEXT, False),
    ),
    "ExternalGrpcNode": (
        ("providerID", 1, _TEXT, False),
        ("name", 2, _TEXT, False),
        ("labels", 3, "map", True),
        ("annotations", 4, "map", True),
    ),
    "NodeGroupsRequest": (),
    "NodeGroupsResponse": (("nodeGroups", 1, "NodeGroup", True),),
    "NodeGroupTargetSizeRequest": (("id", 1, _TEXT, False),),
    "NodeGroupTargetSizeResponse": (("targetSize", 1, _NUMBER, False),),
    "NodeGroupIncreaseSizeRequest": (("delta", 1, _NUMBER, False), ("id", 2, _TEXT, False)),
    "NodeGroupIncreaseSizeResponse": (),
    "NodeGroupDeleteNodesRequest": (("nodes", 1, "ExternalGrpcNode", True), ("id", 2, _TEXT, False)),
    "NodeGroupDeleteNodesResponse": (),
    "NodeGroupForNodeRequest": (("node", 1, "ExternalGrpcNode", False),),
    "NodeGroupForNodeResponse": (("nodeGroup", 1, "NodeGroup", False),),
}
METHODS = ("NodeGroups", "NodeGroupTargetSize", "NodeGroupIncreaseSize", "NodeGroupDeleteNodes", "NodeGroupForNode")
"""The calls of the protocol, each NAMERequest -> NAMEResponse."""


def messages() -> dict[str, Any]:
    """The classes of all messages, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - an extra

    field = descriptor_pb2.FieldDescriptorProto
    plain = {_TEXT: field.TYPE_STRING, _NUMBER: field.TYPE_INT32}
    file = descriptor_pb2.FileDescriptorProto(name="externalgrpc.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for key, number, kind, is_repeated in fields:
            label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
            if kind in plain:
                message.field.add(name=key, number=number, label=label, type=plain[kind])
                continue
            if kind == "map":
                kind_name = f"{key.capitalize()}Entry"
                entry = message.nested_type.add(name=kind_name)
                entry.options.map_entry = True
                for part, at in (("key", 1), ("value", 2)):
                    entry.field.add(name=part, number=at, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
                whole = f".{_PACKAGE}.{name}.{kind_name}"
            else:
                whole = f".{_PACKAGE}.{kind}"
            message.field.add(name=key, number=number, label=label, type=field.TYPE_MESSAGE, type_name=whole)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


class ExternalGrpcCloud:
    """A provider behind a gRPC channel."""

    def __init__(self, channel: "grpc.aio.Channel", timeout_s: float) -> None:
        self._messages = messages()
        self._timeout_s = timeout_s
        self._calls = {
            name: channel.unary_unary(
                f"/{_SERVICE}/{name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=self._messages[f"{name}Response"].FromString,
            )
            for name in METHODS
        }

    async def describe(self, group: str) -> CloudGroup:
        """Read the target and bounds of a group."""
        response = await self._call("NodeGroups")
        bounds = next((node_group for node_group in response.nodeGroups if node_group.id == group), None)
        if bounds is None:
            raise CloudRefused(f"the provider has no node group {group}")
        target = await self._call("NodeGroupTargetSize", id=group)
        return CloudGroup(target_size=target.targetSize, min_size=bounds.minSize, max_size=bounds.maxSize)

    async def increase(self, group: str, count: int) -> None:
        """Raise the target of a group."""
        size = await self.describe(group)
        if count < 1 or size.target_size + count > size.max_size:
            raise CloudRefused(f"{group}: {size.target_size} + {count} is above the maximum {size.max_size}")
        await self._call("NodeGroupIncreaseSize", id=group, delta=count)

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines and lower the target."""
        size = await self.describe(group)
        node_class = self._messages["ExternalGrpcNode"]
        ours, gone, failed = [], [], {}
        for machine in machines:
            labels, annotations = labels_of(machine.node), annotations_of(machine.node)
            node = node_class(
                providerID=machine.provider_id, name=machine.node_name, labels=labels, annotations=annotations
            )
            owner = (await self._call("NodeGroupForNode", node=node)).nodeGroup.id
            if owner == group:
                ours.append(node)
            elif owner:
                failed[machine.node_name] = f"is in the node group {owner}, not in {group}"
            else:
                gone.append(machine.node_name)
        if ours and size.target_size - len(ours) < size.min_size:
            raise CloudRefused(f"{group}: {size.target_size} - {len(ours)} is below the minimum {size.min_size}")
        if ours:
            await self._call("NodeGroupDeleteNodes", id=group, nodes=ours)
        return Deletion(deleted=(*(node.name for node in ours), *gone), failed=failed)

    async def _call(self, name: str, **fields: object) -> Any:  # noqa: ANN401 - a message made at run time
        with _mapped():
            return await self._calls[name](self._messages[f"{name}Request"](**fields), timeout=self._timeout_s)


@contextlib.asynccontextmanager
async def opened_external_grpc(settings: NodeGroupDaemonSettings) -> AsyncIterator[ExternalGrpcCloud]:
    """The configured provider, as a context. Raises ``SettingsError`` if grpcio or the address is missing."""
    if not settings.grpc_address:
        problem = Problem(where="external-grpc-address", what="is missing", expected="host:port of a provider")
        raise SettingsError([problem])
    try:
        import grpc.aio  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
    except ImportError as error:
        problem = Problem(where="cloud-provider", what="grpcio is not installed", expected="pip install serving[grpc]")
        raise SettingsError([problem]) from error
    if settings.grpc_ca_file:
        credentials = grpc.ssl_channel_credentials(*await asyncio.to_thread(_tls_files, settings))
        channel = grpc.aio.secure_channel(settings.grpc_address, credentials)
    else:
        channel = grpc.aio.insecure_channel(settings.grpc_address)
    async with channel:
        yield ExternalGrpcCloud(channel, settings.cloud_timeout_s)


def _tls_files(settings: NodeGroupDaemonSettings) -> list[bytes | None]:
    files = (settings.grpc_ca_file, settings.grpc_key_file, settings.grpc_certificate_file)
    return [Path(file).read_bytes() if file else None for file in files]


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    import grpc.aio  # noqa: PLC0415 - an extra

    try:
        yield
    except grpc.aio.AioRpcError as error:
        text = f"{error.code().name}: {error.details()}"
        busy = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED}
        raise (CloudUnavailable(text) if error.code() in busy else CloudRefused(text)) from error
