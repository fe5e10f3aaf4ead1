"""Ownership of named ports: the service that accepts the connections to a port of a namespace."""

import asyncio
from typing import Any, cast

from serving.activator.io.namedports import NamedPorts
from serving.activator.routing.hostclaims import ServedRoute, route_of
from serving.core.model.knative import NAMED_PORT_ANNOTATION, TCP_ANNOTATION
from serving.core.model.routehosts import named_address
from serving.core.settings.controller import ControllerSettings
from serving.net.proxy.forwarding.exchange import Handler
from serving.net.proxy.server.listener import HttpServer
from tests.virtual_time import pass_s, run_virtually

GATEWAY = "127.0.0.1"


def route(name: str, **annotations: str) -> ServedRoute:
    texts = {NAMED_PORT_ANNOTATION: annotations["port"], TCP_ANNOTATION: annotations.get("tcp", "")}
    metadata = {"name": name, "namespace": "default", "creationTimestamp": "2026-11-24T10:00:00Z", "annotations": texts}
    body = {"metadata": metadata, "spec": {"traffic": [{"latestRevision": True, "percent": 100}]}}
    served = route_of(body, ControllerSettings().host_rules)
    assert isinstance(served, ServedRoute)
    return served


def ports_of(*routes: ServedRoute) -> NamedPorts:
    def make(*_: object) -> asyncio.Protocol:
        raise AssertionError("no connection is made here")

    ports = NamedPorts(cast("HttpServer", None), cast("Handler", None), make=make)
    for served in routes:
        ports.set(served.key, served)
    return ports


def owner(ports: NamedPorts, number: int, namespace: str = "default") -> str:
    claim = ports.tcp_claim(GATEWAY, named_address(GATEWAY, namespace), number)
    return "" if claim is None else claim.name


def test_service_with_tcp_port_owns_its_connections_in_its_namespace() -> None:
    ports = ports_of(
        route("db", port="5432", tcp="5432"), route("api", port="8080"), route("web", port="80", tcp="9000")
    )
    assert [owner(ports, number) for number in (5432, 8080, 80, 9000)] == ["db", "", "", ""]
    assert owner(ports, 5432, "other") == ""


def test_first_service_by_name_owns_shared_tcp_port_until_removed() -> None:
    ports = ports_of(route("b", port="5432", tcp="5432"), route("a", port="5432", tcp="5432"))
    assert owner(ports, 5432) == "a"
    ports.set("default/a", None)
    assert owner(ports, 5432) == "b"


def test_tls_port_has_no_single_owner() -> None:
    assert owner(ports_of(route("db", port="5432", tcp="5432/tls")), 5432) == ""


def test_failed_listen_is_retried_every_5_s_regardless_of_route_changes() -> None:
    tries: list[float] = []

    class Refusing:
        draining = False

        async def listen(self, *_: object, **__: object) -> None:
            tries.append(asyncio.get_running_loop().time())
            raise OSError

    async def change_often() -> None:
        ports = NamedPorts(cast("HttpServer", Refusing()), cast("Handler", None), make=cast("Any", None))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ports.serve({GATEWAY: ()}, stop))
            for number in range(10):
                ports.set("default/api", route("api", port=str(8080 + number % 2)))
                await pass_s(0.1)
            tries.clear()
            await pass_s(60)
            stop.set()

    run_virtually(change_often())
    assert len(tries) == 12, "each 5 s"
