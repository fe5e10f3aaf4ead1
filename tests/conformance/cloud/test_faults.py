"""Clouds that are unreachable, throttle, or fail in the middle of a call."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from serving.core.model.errors import CloudRefused, CloudUnavailable, SettingsError, Unavailable
from serving.core.model.objects import Object
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.core.settings.nodegroup_options import AwsOptions
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import MACHINE_DEPLOYMENT
from serving.net.cluster.port import Write
from serving.nodes.nodegroup.io.clouds.aws import opened_aws
from serving.nodes.nodegroup.io.clouds.clusterapi import ClusterApiCloud
from serving.nodes.nodegroup.io.clouds.externalgrpc import opened_external_grpc
from tests.conformance.cloud.adapters import STAGES, aws

# No process listens on this address.
NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")


@pytest.fixture
def busy() -> Iterator[str]:
    """An AWS API that throttles everything."""

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = (
                b"<ErrorResponse><Error><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>"
            )
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do nothing."""

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def settings(url: str) -> NodeGroupDaemonSettings:
    return NodeGroupDaemonSettings(cloud_provider="aws", aws_region="eu-west-1", aws_endpoint_url=url)


async def test_unreachable_aws_api_is_unavailable() -> None:
    async with opened_aws(settings(f"http://{NOWHERE}")) as cloud:
        with pytest.raises(CloudUnavailable):
            await cloud.describe("workers")


async def test_throttled_aws_api_is_unavailable(busy: str) -> None:
    async with opened_aws(settings(busy)) as cloud:
        with pytest.raises(CloudUnavailable, match="Rate exceeded"):
            await cloud.describe("workers")


async def test_aws_needs_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match="aws-region"):
        async with opened_aws(NodeGroupDaemonSettings(cloud_provider="aws")):
            pass


async def test_unreachable_grpc_provider_is_unavailable() -> None:
    where = NodeGroupDaemonSettings(grpc_address=NOWHERE, cloud_timeout_s=5.0)
    async with opened_external_grpc(where) as cloud:
        with pytest.raises(CloudUnavailable):
            await cloud.describe("workers")


async def test_grpc_provider_needs_an_address() -> None:
    with pytest.raises(SettingsError, match="external-grpc-address"):
        async with opened_external_grpc(NodeGroupDaemonSettings()):
            pass


async def test_unreachable_management_cluster_is_unavailable() -> None:
    class Away(MemoryCluster):
        async def get(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401
            raise Unavailable("no answer")

    with pytest.raises(CloudUnavailable):
        await ClusterApiCloud(Away()).describe("default/workers")


@pytest.mark.parametrize("group", ["workers", "Deployment/default/workers", "a/b/c/d"])
async def test_invalid_cluster_api_group_name_is_rejected_with_the_format(group: str) -> None:
    with pytest.raises(CloudRefused, match="expected NAMESPACE/NAME"):
        await ClusterApiCloud(MemoryCluster()).describe(group)


async def test_crash_between_mark_and_scale_is_repaired_by_the_next_delete() -> None:
    async with STAGES["cluster-api"]() as cloud:
        cluster: Any = cloud.cloud._cluster
        first = cloud.machines[0]
        real = cluster.write

        async def crashes(write: Write) -> Object:
            if write.kind == MACHINE_DEPLOYMENT:
                raise Unavailable("the process was killed")
            result: Object = await real(write)
            return result

        cluster.write = crashes
        with pytest.raises(CloudUnavailable):
            await cloud.port.delete(cloud.group, [first])
        cluster.write = real
        assert (await cloud.port.delete(cloud.group, [first])).deleted == (first.node_name,)
        assert (await cloud.port.describe(cloud.group)).target_size == 2


@pytest.mark.slow
async def test_launch_template_starts_machines_through_a_fleet() -> None:
    async with aws() as new_cloud:
        cloud: Any = new_cloud.cloud
        template = await asyncio.to_thread(
            pytest.importorskip("boto3").client("ec2", endpoint_url=cloud._apis._endpoint_url).create_launch_template,
            LaunchTemplateName="t",
            LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "t3.small"},
        )
        options = AwsOptions(launch_template_id=template["LaunchTemplate"]["LaunchTemplateId"], lifecycle="on-demand")
        cloud._options = lambda _: options
        await new_cloud.port.increase(new_cloud.group, 2)
        assert (await new_cloud.port.describe(new_cloud.group)).target_size == 5
