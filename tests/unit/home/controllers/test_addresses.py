import asyncio
import os
from pathlib import Path

from serving.cluster.kinds import ROUTE
from serving.home.controllers.addresses import HostsFile, ServiceHosts, hosts_text, names_of
from serving.home.store.memory import MemoryCluster
from serving.model.knative import NAMED_PORT_ANNOTATION
from serving.model.objects import Object
from serving.settings.controller import ControllerSettings
from tests.eventually import until

SETTINGS = ControllerSettings()


def route(name: str = "hello", **fields: object) -> Object:
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Route",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"traffic": [{"configurationName": name, "percent": 100, "latestRevision": True, **fields}]},
    }


def test_a_route_has_its_public_host_and_three_cluster_local_ones() -> None:
    public = f"hello.default.{SETTINGS.domain}"
    inner = ["hello.default.svc.cluster.local", "hello.default.svc", "hello.default"]
    assert names_of(route(), SETTINGS) == [public, *inner]


def test_tags_have_hosts_too() -> None:
    assert "blue-hello.default.svc.cluster.local" in names_of(route(tag="blue"), SETTINGS)


def test_the_machines_own_entries_come_first() -> None:
    text = hosts_text("127.0.0.1 localhost\n", [["a.b", "a"], ["c"]])
    assert text == "127.0.0.1 localhost\n# services\n127.0.0.1 a.b a\n127.0.0.1 c\n"


async def test_the_file_follows_routes_and_stays_the_same_file(tmp_path: Path) -> None:
    path, cluster = tmp_path / "hosts", MemoryCluster()
    hosts = HostsFile(cluster, path, lambda: SETTINGS)
    mask = os.umask(0o077)
    try:
        hosts.write()
    finally:
        os.umask(mask)
    # Pods read it, which have other users.
    assert path.stat().st_mode & 0o777 == 0o644
    number = path.stat().st_ino
    running = asyncio.create_task(hosts.run())
    await cluster.create(ROUTE, route())
    await until(lambda: "hello.default.svc" in path.read_text())
    await cluster.delete(ROUTE, "default", "hello")
    await until(lambda: "hello.default.svc" not in path.read_text())
    running.cancel()
    # A mount in a pod shows this file, whatever has its name later.
    assert path.stat().st_ino == number
    await cluster.close()


async def test_services_with_a_named_port_are_known_by_their_inner_hosts() -> None:
    cluster = MemoryCluster()
    hosts = ServiceHosts(cluster, lambda: SETTINGS.host_rules)
    running = [asyncio.create_task(one.run()) for one in hosts.reflectors]
    await cluster.create(ROUTE, route())
    named = route("api")
    named["metadata"]["annotations"] = {NAMED_PORT_ANNOTATION: "8080"}
    await cluster.create(ROUTE, named)
    await until(lambda: hosts.named() == {"api.default.svc.cluster.local"})
    await cluster.delete(ROUTE, "default", "api")
    await until(lambda: not hosts.named())
    for task in running:
        task.cancel()
    await cluster.close()
