import asyncio
import os
from pathlib import Path

from serving.core.model.knative import NAMED_PORT_ANNOTATION, VISIBILITY_LABEL
from serving.core.model.objects import Object
from serving.core.model.routehosts import machine_gateway, named_address
from serving.core.settings.controller import ControllerSettings
from serving.home.controllers.addresses import HostsFiles, ServiceHosts, entries_of, names_of
from serving.home.controllers.garbage import collect_garbage
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import NAMESPACE, ROUTE
from tests.eventually import until

SETTINGS = ControllerSettings()


def new_route(name: str = "hello", **fields: object) -> Object:
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Route",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"traffic": [{"configurationName": name, "percent": 100, "latestRevision": True, **fields}]},
    }


def named(name: str = "api", namespace: str = "default") -> Object:
    route = new_route(name)
    route["metadata"] |= {"namespace": namespace, "annotations": {NAMED_PORT_ANNOTATION: "8080"}}
    return route


def test_route_has_one_public_and_three_cluster_local_hosts() -> None:
    inner = ["hello.default.svc.cluster.local", "hello.default.svc", "hello.default"]
    assert names_of(new_route(), SETTINGS) == {"shown": [f"hello.default.{SETTINGS.domain}"], "inner": inner}


def test_tag_of_a_route_has_cluster_local_host() -> None:
    assert "blue-hello.default.svc.cluster.local" in names_of(new_route(tag="blue"), SETTINGS)["inner"]


def test_named_port_route_has_short_name_in_its_namespace() -> None:
    gateway = machine_gateway(8081)
    everywhere, own = entries_of([new_route(), named(), named("api", "shop")], SETTINGS, gateway=gateway)
    here, there = named_address(gateway, "default"), named_address(gateway, "shop")
    assert own == {"default": [f"{here} api"], "shop": [f"{there} api"]}
    assert everywhere == [
        "127.0.0.1 hello.default.localhost hello.default.svc.cluster.local hello.default.svc hello.default",
        "127.0.0.1 api.default.localhost",
        f"{here} api.default.svc.cluster.local api.default.svc api.default",
        "127.0.0.1 api.shop.localhost",
        f"{there} api.shop.svc.cluster.local api.shop.svc api.shop",
    ]


def test_cluster_local_route_has_no_public_host() -> None:
    inner = named()
    inner["metadata"]["labels"] = {VISIBILITY_LABEL: "cluster-local"}
    gateway = machine_gateway(8081)
    everywhere, _ = entries_of([inner], SETTINGS, gateway=gateway)
    address = named_address(gateway, "default")
    assert everywhere == [f"{address} api.default.svc.cluster.local api.default.svc api.default"]


def state_of(path: Path) -> tuple[str, int, int]:
    """The text, the mode and the inode number of a file."""
    stats = path.stat()
    return path.read_text(), stats.st_mode & 0o777, stats.st_ino


async def test_hosts_files_follow_routes_in_place(tmp_path: Path) -> None:
    folder, cluster = tmp_path / "names", MemoryCluster()
    hosts = HostsFiles(cluster, folder, lambda: SETTINGS, inner_port=8081)
    mask = os.umask(0o077)
    try:
        path, other = Path(hosts.file_of("default")), Path(hosts.file_of("kube-system"))
    finally:
        os.umask(mask)
    # Pods with other users read the file; the machine's entries come first.
    text, mode, number = state_of(path)
    assert mode == 0o644
    assert text.startswith(state_of(Path("/etc/hosts"))[0].rstrip("\n"))
    running = asyncio.create_task(hosts.run())
    await cluster.create(ROUTE, named())
    await until(lambda: path.read_text().endswith(" api\n"))
    await until(lambda: other.read_text().endswith(" api.default\n"))
    await cluster.delete(ROUTE, "default", "api")
    await until(lambda: "api.default.svc" not in path.read_text())
    running.cancel()
    # Pods mount this inode, so the file must not be replaced.
    assert state_of(path)[2] == number
    await cluster.close()


async def test_hosts_files_survive_restart_and_are_deleted_with_namespace(tmp_path: Path) -> None:
    folder, cluster = tmp_path / "names", MemoryCluster()
    folder.mkdir()
    for namespace in ("default", "gone"):
        (folder / namespace).write_text("127.0.0.1 kept\n")
    hosts = HostsFiles(cluster, folder, lambda: SETTINGS, inner_port=8081)
    # Until all routes are known, the file of the earlier process is unchanged.
    assert state_of(Path(hosts.file_of("default")))[0] == "127.0.0.1 kept\n"
    running = asyncio.create_task(hosts.run())
    await until(lambda: "kept" not in (folder / "default").read_text())
    await until(lambda: not (folder / "gone").exists())
    await cluster.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    path = Path(hosts.file_of("shop"))
    collecting = asyncio.create_task(collect_garbage(cluster))
    await cluster.delete(NAMESPACE, "", "shop")
    await until(lambda: not path.exists())
    collecting.cancel()
    running.cancel()
    await cluster.close()


def test_missing_names_folder_returns_no_hosts_file(tmp_path: Path) -> None:
    hosts = HostsFiles(MemoryCluster(), tmp_path / "names", lambda: SETTINGS, inner_port=8081)
    (tmp_path / "names").rmdir()
    assert hosts.file_of("default") == ""


async def test_service_hosts_list_named_port_services() -> None:
    cluster = MemoryCluster()
    hosts = ServiceHosts(cluster, lambda: SETTINGS.host_rules)
    running = [asyncio.create_task(reflector.run()) for reflector in hosts.reflectors]
    await cluster.create(ROUTE, new_route())
    named = new_route("api")
    named["metadata"]["annotations"] = {NAMED_PORT_ANNOTATION: "8080"}
    await cluster.create(ROUTE, named)
    await until(lambda: hosts.named() == {"api.default.svc.cluster.local"})
    await cluster.delete(ROUTE, "default", "api")
    await until(lambda: not hosts.named())
    for task in running:
        task.cancel()
    await cluster.close()
