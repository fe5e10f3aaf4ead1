"""The hosts that a pod's name server resolves to the activator's address."""

import asyncio

from serving.core.settings.controller import ControllerSettings
from serving.home.controllers.addresses import ServiceHosts
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CLUSTER_DOMAIN_CLAIM, DOMAIN_MAPPING, ROUTE
from tests.eventually import until
from tests.integration.test_domain_mapping import CLAIM, HOST, MAPPING


async def test_service_hosts_follow_names_and_claims_but_not_route_status() -> None:
    cluster, rules = MemoryCluster(), ControllerSettings().host_rules
    hosts = ServiceHosts(cluster, lambda: rules)
    route = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Route",
        "metadata": {"name": "hello", "namespace": "default"},
        "spec": {"traffic": [{"configurationName": "hello", "percent": 100}]},
    }
    status = {"url": "http://bank.example.com", "traffic": [{"url": "http://pypi.org", "tag": "pypi.org"}]}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reflector.run()) for reflector in hosts.reflectors]
        await cluster.create(ROUTE, route)
        await cluster.patch(ROUTE, "default", "hello", patch={"status": status}, subresource="status")
        await until(lambda: "hello.default.localhost" in hosts)
        assert [host for host in ("bank.example.com", "pypi.org") if host in hosts] == []
        await cluster.create(DOMAIN_MAPPING, MAPPING)
        assert HOST not in hosts
        await cluster.create(CLUSTER_DOMAIN_CLAIM, CLAIM)
        await until(lambda: HOST in hosts)
        for task in tasks:
            task.cancel()
