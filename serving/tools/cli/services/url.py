"""``serving url``: prints the URL of a service, also for machines that do not resolve ``*.localhost``."""

import contextlib
import json
import urllib.parse

import click
import msgspec

from serving.core.model.objects import Object, name_of, nested
from serving.home.state import StateFolder
from serving.tools.cli.client.api import ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import served_of
from serving.tools.cli.client.output import output_option, print_aside

CLUSTER_LOCAL = (".svc.cluster.local", ".svc")
"""The ends of hosts that have a meaning only inside of a cluster."""

_LOOPBACK = "127.0.0.1"
_LOCAL = ".localhost"


class ServiceAddress(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a service: its ``url``, with the name ``host``, through a connection to ``connect_host``.

    The connection needs no resolution of ``host``, which is sent in the Host header.
    """

    url: str
    host: str
    connect_host: str
    connect_port: int

    @property
    def path(self) -> str:
        """The path below which requests are served."""
        return urllib.parse.urlsplit(self.url).path or "/"

    @property
    def curl(self) -> str:
        """The curl command that works without resolving the host name."""
        return f"curl -H 'Host: {self.host}' http://{self.connect_host}:{self.connect_port}{self.path}"


def address_of(api: ApiClient, service: Object, *, tag: str = "", is_inner: bool = False) -> ServiceAddress:
    """The address of a service or tag; exits if the service has no address yet.

    ``is_inner`` selects the cluster-local address, which other services use.
    """
    url = str(nested(service, "status", *(("address", "url") if is_inner else ("url",))) or "")
    if tag:
        targets = nested(service, "status", "traffic") or ()
        url = str(next((target.get("url", "") for target in targets if target.get("tag") == tag), ""))
        if not url:
            known = ", ".join(sorted(target["tag"] for target in targets if target.get("tag"))) or "none"
            fail(f"{name_of(service)} has no tag {tag} that has traffic; its tags are: {known}")
    if not url:
        fail(f"{name_of(service)} has no URL yet; `serving describe {name_of(service)}` shows why")
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if host.endswith(_LOCAL) and not api.is_cluster:
        # localhost is this machine by definition (RFC 6761), though not every resolver supports it.
        return ServiceAddress(url=url, host=host, connect_host=_LOOPBACK, connect_port=port)
    if api.state_path is None:
        return ServiceAddress(url=url, host=host, connect_host=host, connect_port=port)
    # Cluster-local addresses have another listener on this machine.
    listener = "inner" if host.endswith(CLUSTER_LOCAL) else "public"
    with contextlib.suppress(OSError, ValueError, LookupError):
        port = StateFolder(api.state_path).read_ports()[listener]
    return ServiceAddress(url=url, host=host, connect_host=_LOOPBACK, connect_port=port)


def print_url(api: ApiClient, service: Object, *, tag: str) -> None:
    """Print the URL of a service or tag, and a curl command for it."""
    address = address_of(api, service, tag=tag)
    click.echo(address.url)
    _print_connection(api, service, address)


def _print_connection(api: ApiClient, service: Object, address: ServiceAddress) -> None:
    """Print a command that sends a request, if the URL alone does not reach the service."""
    if address.connect_host != address.host:
        click.echo(address.curl)
    elif api.is_cluster and address.host.endswith(_LOCAL):
        print_aside(
            f"the cluster has no domain (`serving install --domain`); `serving invoke {name_of(service)}` calls it"
        )


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.option("--tag", default="", help="Print the URL of this traffic tag.")
@click.option("--cluster-local", is_flag=True, help="Print the cluster-local URL, for calls from other services.")
@output_option("text", "json", "url")
@api_options
def url(*, api: ApiClient, name: str, tag: str, cluster_local: bool, output: str) -> None:
    """Print the URL of a service, and a curl command for machines that do not resolve *.localhost."""
    if tag and cluster_local:
        fail_usage("--tag and --cluster-local exclude each other")
    service = served_of(api, name)
    address = address_of(api, service, tag=tag, is_inner=cluster_local)
    if output == "json":
        click.echo(json.dumps({**msgspec.to_builtins(address), "curl": address.curl}, indent=2))
        return
    click.echo(address.url)
    if cluster_local and api.state_path is not None:
        from serving.tools.cli.client.checks import check_pod_names  # noqa: PLC0415 - for this option only

        for finding in check_pod_names():
            if finding.advice:
                print_aside(f"warning: {finding.text}; {finding.advice}")
    if output == "text" and not cluster_local:
        _print_connection(api, service, address)


def print_unrouted(service: Object) -> None:
    """Print that the new revision gets no traffic because the traffic is pinned to other revisions."""
    created = nested(service, "status", "latestCreatedRevisionName")
    targets = nested(service, "spec", "traffic") or ()
    is_routed = any(
        target.get("percent") and (target.get("latestRevision") or target.get("revisionName") == created)
        for target in targets
    )
    if targets and not is_routed:
        name = nested(service, "metadata", "name")
        print_aside(
            f"{created or 'the new revision'} gets 0 % of the traffic, which is pinned to other revisions; "
            f"`serving traffic {name} --to-latest` sends it all there"
        )
