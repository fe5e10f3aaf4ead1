"""``serving status`` on a cluster: the daemons, and how many services and pods are ready."""

import sys
from http import HTTPStatus

import click
import msgspec

from serving.core.model.knative import REVISION_LABEL
from serving.core.model.objects import Object, is_true, name_of, nested
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import DEPLOYMENT, POD, SERVING_SERVICE, Kind
from serving.tools.cli.client.api import ApiCall, ApiClient, fail, message_of
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.client.tree import OUR_LABEL

_NOT_RUNNING = 1


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one daemon."""

    name: str
    image: str
    pod_count: int
    available_pod_count: int


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an installation.

    Counts include all namespaces. If the user may not list them, they include only ``namespace``.
    """

    server: str
    system_namespace: str
    namespace: str
    daemons: list[DaemonStatus]
    service_count: int
    ready_service_count: int
    pod_count: int
    ready_pod_count: int


def print_cluster_status(api: ApiClient, *, output: str) -> None:
    """Print whether the system runs on a cluster. Exits with 1 if a daemon has no available pod."""
    status = cluster_status(api)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(status), indent=2).decode())
    else:
        pods = (f"{daemon.name} {daemon.available_pod_count} of {daemon.pod_count}" for daemon in status.daemons)
        where = f" in {status.namespace}" if status.namespace else ""
        click.echo(f"serving runs on the cluster at {status.server}, in namespace {status.system_namespace}")
        click.echo(f"daemons    {', '.join(pods)}")
        click.echo(f"services   {status.ready_service_count} of {status.service_count} ready{where}")
        click.echo(f"pods       {status.ready_pod_count} of {status.pod_count} ready{where}")
        click.echo("dashboard  `serving dashboard` opens it")
    if not all(daemon.available_pod_count for daemon in status.daemons):
        sys.exit(_NOT_RUNNING)


def cluster_status(api: ApiClient) -> ClusterStatus:
    """The state of the installation. Ends the command if there is no installation."""
    deployments = daemon_deployments(api)
    if not deployments:
        fail(
            f"serving is not installed in namespace {system_namespace()} of {api.server}; `serving install` installs it"
        )
    services, where = _listed(api, SERVING_SERVICE)
    pods = [pod for pod in _listed(api, POD, REVISION_LABEL)[0] if nested(pod, "status", "phase") != "Failed"]
    return ClusterStatus(
        server=api.server,
        system_namespace=system_namespace(),
        namespace=where,
        daemons=[
            DaemonStatus(
                name=name_of(deployment),
                image=deployment["spec"]["template"]["spec"]["containers"][0]["image"],
                pod_count=deployment["spec"].get("replicas", 1),
                available_pod_count=nested(deployment, "status", "availableReplicas") or 0,
            )
            for deployment in deployments
        ],
        service_count=len(services),
        ready_service_count=sum(is_true(service, "Ready") for service in services),
        pod_count=len(pods),
        ready_pod_count=sum(is_true(pod, "Ready") for pod in pods),
    )


def daemon_deployments(api: ApiClient) -> list[Object]:
    """The Deployments of the daemons by name. Raises ``ServingError`` if the user may not list them."""
    call = ApiCall(path=path_of(DEPLOYMENT, system_namespace()), query={"labelSelector": "=".join(OUR_LABEL)})
    return sorted(api.read(call)["items"], key=name_of)


def _listed(api: ApiClient, kind: Kind, selector: str = "") -> tuple[list[Object], str]:
    """The objects of a kind, and the namespace that they are from: "" for all.

    If the user may not list all namespaces, only the current namespace is listed.
    """
    query = {"labelSelector": selector}
    status, response = api.send(ApiCall(path=path_of(kind, None), query=query))
    if status == HTTPStatus.FORBIDDEN:
        return api.must(ApiCall(path=path_of(kind, api.namespace), query=query))["items"], api.namespace
    if status >= HTTPStatus.BAD_REQUEST:
        fail(message_of(response))
    return response["items"], ""
