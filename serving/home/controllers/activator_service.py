"""The activators of this machine as a Service with a slice, as a cluster has them.

The controller puts them into the public Services of revisions and routes, and people who look for ``activator-service`` find
where it listens. All activator processes accept from one socket, so there is one endpoint.
"""

import contextlib

from serving.cluster.kinds import ENDPOINT_SLICE, SERVICE
from serving.cluster.port import Cluster
from serving.controller.revisions.activators import ACTIVATOR_SERVICE
from serving.model.errors import AlreadyExists
from serving.model.objects import Object

_ADDRESS = "127.0.0.1"


async def publish_activators(cluster: Cluster, namespace: str, *, inner_port: int) -> None:
    """Create the Service and its slice, which the store does not keep over a restart."""
    port: Object = {"name": "http", "port": inner_port, "protocol": "TCP"}
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ACTIVATOR_SERVICE, "namespace": namespace},
        "spec": {"ports": [{**port, "port": 80, "targetPort": inner_port}]},
    }
    found: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{ACTIVATOR_SERVICE}-local",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": ACTIVATOR_SERVICE},
        },
        "addressType": "IPv4",
        "ports": [port],
        "endpoints": [{"addresses": [_ADDRESS], "conditions": {"ready": True}}],
    }
    for kind, body in ((SERVICE, service), (ENDPOINT_SLICE, found)):
        with contextlib.suppress(AlreadyExists):
            await cluster.create(kind, body)
