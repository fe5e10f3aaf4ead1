"""A fake implementation of the Gateway API: it reports a given verdict on HTTPRoutes, and routes requests.

What it does with a request is what the API says: the HTTPRoute by host, the rule by headers, a backend by weight, an
address of the backend's EndpointSlices, and headers that are set. Addresses in 10.0.0.0/8 are reached in 127.0.0.0/8.
"""

import asyncio
import random
from collections.abc import Mapping

from serving.core.model.errors import Conflict, NotFound
from serving.core.model.objects import Object
from serving.net.cluster.kinds import ENDPOINT_SLICE, HTTP_ROUTE
from serving.net.cluster.port import Cluster, EventType

GATEWAY = "gateways/front"


def accepted(generation: int) -> list[Object]:
    """All is well with an HTTPRoute of this generation."""
    text = {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"}
    return [_condition(kind, "True", reason, generation=generation) for kind, reason in text.items()]


def refused(generation: int) -> list[Object]:
    """The Gateway admits no HTTPRoute of that namespace."""
    return [_condition("Accepted", "False", "NotAllowedByListeners", generation=generation)]


def _condition(kind: str, status: str, reason: str, *, generation: int) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": f"it is {reason}",
        "observedGeneration": generation,
        "lastTransitionTime": "2026-11-21T13:00:00Z",
    }


class PretendedGateway:
    """A fake gateway. ``verdict`` is its report about each HTTPRoute."""

    def __init__(self, cluster: Cluster, space: str) -> None:
        self.verdict = accepted
        self._cluster, self._space = cluster, space
        self._dice = random.Random(5)

    async def run(self) -> None:
        """Report on every HTTPRoute whenever it changes."""
        listing = await self._cluster.list(HTTP_ROUTE, self._space)
        for item in listing.items:
            await self.report(item)
        async with self._cluster.watch(HTTP_ROUTE, self._space, resource_version=listing.resource_version) as events:
            async for event in events:
                if event.type in (EventType.ADDED, EventType.MODIFIED):
                    await self.report(event.object)

    async def report(self, resource: Object) -> None:
        """Report on one HTTPRoute."""
        metadata = resource["metadata"]
        namespace, name = GATEWAY.split("/")
        parent = {
            "parentRef": {
                "group": "gateway.networking.k8s.io",
                "kind": "Gateway",
                "namespace": namespace,
                "name": name,
            },
            "controllerName": "example.com/pretended",
            "conditions": self.verdict(metadata["generation"]),
        }
        if (resource.get("status") or {}).get("parents") == [parent]:
            return
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"parents": [parent]}}
        try:
            await self._cluster.patch(HTTP_ROUTE, self._space, metadata["name"], patch=patch, subresource="status")
        except (Conflict, NotFound):
            # Its next version comes by the watch.
            return

    async def send_get(self, host: str, *, headers: Mapping[str, str] | None = None) -> tuple[str, int, str]:
        """Send one request as a client of the Gateway: the chosen backend, the status, and the body."""
        result = dict(headers or {})
        backend = await self._backend(host, result)
        modifier = backend["filters"][0]["requestHeaderModifier"]
        changed = {entry["name"].lower() for entry in modifier["set"]}
        sent = {name: value for name, value in result.items() if name.lower() not in changed}
        sent |= {entry["name"]: entry["value"] for entry in modifier["set"]}
        address, port = await self._endpoint(backend["name"])
        lines = [f"{name}: {value}" for name, value in sent.items()]
        status, body = await asked(address, port, host=host, lines=lines)
        return backend["name"], status, body

    async def _backend(self, host: str, headers: Mapping[str, str]) -> Object:
        routes = (await self._cluster.list(HTTP_ROUTE, self._space)).items
        (route,) = [resource for resource in routes if host in resource["spec"]["hostnames"]]
        result = {name.lower(): value for name, value in headers.items()}

        def fits(match: Object) -> bool:
            return all(result.get(header["name"].lower()) == header["value"] for header in match.get("headers", ()))

        # The rule with more headers goes before one with fewer.
        fitting = [
            (len(match.get("headers", ())), rule)
            for rule in route["spec"]["rules"]
            for match in rule["matches"]
            if fits(match)
        ]
        _, rule = max(fitting, key=lambda candidate: candidate[0])
        backends: list[Object] = rule["backendRefs"]
        return self._dice.choices(backends, [backend["weight"] for backend in backends])[0]

    async def _endpoint(self, service: str) -> tuple[str, int]:
        selector = f"kubernetes.io/service-name={service}"
        (endpoint_slice,) = (await self._cluster.list(ENDPOINT_SLICE, self._space, label_selector=selector)).items
        address = self._dice.choice(endpoint_slice["endpoints"])["addresses"][0]
        return f"127.{address.partition('.')[2]}", endpoint_slice["ports"][0]["port"]


async def asked(address: str, port: int, *, host: str, lines: list[str]) -> tuple[int, str]:
    """Send one request on its own connection: status and body."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        head = ["GET / HTTP/1.1", f"Host: {host}", "Connection: close", *lines]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        async with asyncio.timeout(240):
            response, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(response.split(b" ")[1]), body.decode()
