"""The ports of ``serving up``: the one table that its options, its docs and its tests are made from."""

import msgspec


class ListenPort(msgspec.Struct, frozen=True, kw_only=True):
    """A listening socket on 127.0.0.1 that the supervisor holds and hands down. ``number`` is its default."""

    name: str
    number: int
    what: str


PORTS = (
    ListenPort(name="public", number=8080, what="Port of all services."),
    ListenPort(name="tls", number=8443, what="Port of all services over TLS, if there is a certificate."),
    ListenPort(name="inner", number=8081, what="Port of cluster-local services."),
    ListenPort(name="api", number=6080, what="Port of the Kubernetes API."),
    ListenPort(name="stats", number=6081, what="Port of the autoscaler."),
    ListenPort(name="activator-metrics", number=6082, what="Port of the activator's metrics."),
    ListenPort(name="control-metrics", number=6083, what="Port of the metrics of control."),
    ListenPort(name="dashboard", number=6090, what="Port of the dashboard."),
)
"""In the order in which help and output list them. ``--NAME-port=0`` takes any free port."""
