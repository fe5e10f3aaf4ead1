"""``serving install``: applies the system to a Kubernetes cluster, or removes it."""

import os
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click
import yaml

from serving.cli.client.api import ApiCall, ApiClient, fail, fail_usage, message_of
from serving.cli.client.output import Progress, paint, print_aside
from serving.cli.client.tree import KNATIVE_CRDS, InstallOptions, is_ours, objects_of, path_of, render, tree_folder
from serving.cli.services.waiting import until
from serving.model.errors import InvalidValue
from serving.model.objects import Object
from serving.model.quantity import parse_duration_s
from serving.settings.parse import EXAMPLE_KEY

_POLL_S = 0.5

_MANAGER = "serving-install"
# Owns the keys of ConfigMaps that --domain and its like set, and those kept from a version that shipped every key.
_SETTINGS_MANAGER = "serving-install-settings"
_APPLY = "application/apply-patch+yaml"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD, _CONFIG_MAP, _JOB = "CustomResourceDefinition", "ConfigMap", "Job"
_NOT_FOUND, _INVALID = 404, 422
_ESTABLISHED_S = 60.0
_GONE_S = 60.0
_PAUSE_S = 0.2
_COLORS = {"created": "green", "changed": "yellow", "unchanged": "white", "kept": "yellow", "deleted": "yellow"}


def until_available(api: ApiClient, objects: Sequence[Object], *, timeout_s: float) -> None:
    """Return when all Deployments of an installation are rolled out."""
    deployments = [one for one in objects if one["kind"] == "Deployment"]

    def pending() -> str | None:
        states = (rollout_state(api.done("GET", path_of(one))) for one in deployments)
        return "; ".join(filter(None, states)) or None

    def late(state: str) -> str:
        lines = [f"  {line}" for one in deployments for line in _obstacles(api, one)]
        return "\n".join([f"not available after {timeout_s:g} s: {state}", *lines])

    until(pending, "waiting for the daemons", late=late, timeout_s=timeout_s, poll_s=_POLL_S)
    print_aside(
        f"{len(deployments)} daemons are available: {', '.join(one['metadata']['name'] for one in deployments)}"
    )


def until_removed(api: ApiClient, objects: Sequence[Object], *, timeout_s: float) -> None:
    """Return when no object of an installation is left, nor its namespace."""
    left = list(objects)

    def pending() -> str | None:
        while left and api.call("GET", path_of(left[-1]))[0] == HTTPStatus.NOT_FOUND:
            left.pop()
        return f"{left[-1]['kind'].lower()}/{left[-1]['metadata']['name']} is being deleted" if left else None

    def late(state: str) -> str:
        return f"not gone after {timeout_s:g} s: {state}"

    until(pending, "waiting until everything is removed", late=late, timeout_s=timeout_s, poll_s=_POLL_S)


def rollout_state(deployment: Object) -> str | None:
    """The pending part of a Deployment's rollout; None when complete."""
    name, asked_count = deployment["metadata"]["name"], deployment["spec"].get("replicas", 1)
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 1):
        return f"{name} is not observed yet"
    updated_count, count = status.get("updatedReplicas", 0), status.get("replicas", 0)
    if updated_count < asked_count:
        return f"{name} has updated {updated_count} of {asked_count} pods"
    if count > updated_count:
        return f"{name} ends {count - updated_count} old pods"
    available_count = status.get("availableReplicas", 0)
    if available_count < asked_count:
        return f"{name} has {available_count} of {asked_count} pods available"
    return None


def obstacle_of(pod: Object) -> str | None:
    """Why a pod is not ready: a container's reason and message, or that of scheduling; None for a ready pod."""
    status = pod.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True":
        return None
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        found = state.get("waiting") or state.get("terminated")
        if found:
            return _state_text(found)
    scheduled = conditions.get("PodScheduled", {})
    return _state_text(scheduled) if scheduled.get("status") == "False" else "it runs and is not ready"


def _state_text(state: Object) -> str:
    reason, message = state.get("reason") or "Unknown", " ".join((state.get("message") or "").split())
    return f"{reason}: {message}" if message else reason


def _obstacles(api: ApiClient, deployment: Object) -> list[str]:
    labels = deployment["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    path = f"/api/v1/namespaces/{deployment['metadata']['namespace']}/pods"
    status, response = api.send(ApiCall(path=path, query={"labelSelector": selector}))
    pods = response.get("items", ()) if status < HTTPStatus.BAD_REQUEST else ()
    return [f"{pod['metadata']['name']}: {reason}" for pod in pods if (reason := obstacle_of(pod))]


class Installation:
    """The objects of one installation, and their target cluster."""

    def __init__(self, api: ApiClient, objects: Sequence[Object]) -> None:
        self._api = api
        self._objects = objects
        self._crds = [one for one in objects if one["kind"] == _CRD]
        self._not_established = [path_of(one) for one in self._crds]

    def check(self) -> None:
        """End the command if the server is no cluster, or runs Knative Serving."""
        status, response = self._api.call("GET", _CRDS + "?limit=1")
        if status == _NOT_FOUND:
            fail("this server has no CustomResourceDefinitions: no cluster; `serving up` needs no installation")
        if status >= 400:
            fail(message_of(response))
        for name in (*(one["metadata"]["name"] for one in self._crds), *KNATIVE_CRDS):
            status, found = self._api.call("GET", f"{_CRDS}/{name}")
            if status < 400 and not is_ours(found):
                fail(
                    f"{name} is there and is not ours: Knative Serving runs on this cluster, or something that shares its"
                    " kinds. Nothing was touched; uninstall that first, or take another cluster"
                )

    def apply(self, *, is_waited_for: bool = False) -> None:
        """Create or change every object and print the result of each; a refused object ends the command."""
        with Progress("installing") as progress:
            for one in self._objects:
                progress.update(f"applying {_named(one)}")
                if one["kind"] not in {"Namespace", _CRD}:
                    self._wait_for_crds()
                _print_result(one, self._apply_settings(one) if one["kind"] == _CONFIG_MAP else self._apply(one))
        if not is_waited_for:
            namespace = next(one["metadata"]["name"] for one in self._objects if one["kind"] == "Namespace")
            print_aside(f"the daemons are starting: kubectl -n {namespace} get pods -w (--wait waits for them)")

    def remove(self, *, with_services: bool) -> None:
        """Delete every object in reverse order. Services of users are deleted only ``with_services``."""
        count = sum(map(self._count, self._crds))
        if count and not with_services:
            fail(
                f"there are {count} services, revisions and the like, which go with their definitions: delete them first,"
                " or say --with-services"
            )
        with Progress("uninstalling") as progress:
            for one in reversed(self._objects):
                progress.update(f"deleting {_named(one)}")
                body = {"propagationPolicy": "Background"}
                status, response = self._api.call("DELETE", path_of(one), body)
                if status >= 400 and status != _NOT_FOUND:
                    fail(f"{_named(one)}: {message_of(response)}")
                if status < 400:
                    _print_result(one, "deleted")

    def _apply(self, one: Object) -> str:
        path = path_of(one)
        status, before = self._api.call("GET", path)
        status_after, after = self._send(path, one)
        if status_after == _INVALID and one["kind"] == _JOB:
            # A job cannot be changed, and this one has not ended.
            self._delete(path)
            status_after, after = self._send(path, one)
        if status_after >= 400:
            fail(f"{_named(one)}: {message_of(after)}")
        return _result(before if status < 400 else None, after)

    def _apply_settings(self, one: Object) -> str:
        """Apply the example of a ConfigMap, then the keys that the command line names. Every other key stays."""
        path = path_of(one)
        status, before = self._api.call("GET", path)
        found = (before.get("data") or {}) if status < 400 else {}
        example = {EXAMPLE_KEY: one["data"][EXAMPLE_KEY]}
        asked = {key: value for key, value in one["data"].items() if key != EXAMPLE_KEY}
        if found and EXAMPLE_KEY not in found and (kept := _not_default(found, one)):
            # An older version owns every key and would remove them: keys that differ from their default get another owner.
            self._must_send(path, {**one, "data": kept}, manager=_SETTINGS_MANAGER)
        after = self._must_send(path, {**one, "data": example})
        if asked.items() - after["data"].items():
            query = {"fieldManager": _SETTINGS_MANAGER, "fieldValidation": "Strict"}
            after = self._api.must(ApiCall(method="PATCH", path=path, query=query, body={"data": asked}))
        result = _result(before if status < 400 else None, after)
        return "kept" if result == "unchanged" and after["data"].keys() - {EXAMPLE_KEY} else result

    def _must_send(self, path: str, one: Object, *, manager: str = _MANAGER) -> Object:
        status, after = self._send(path, one, manager=manager)
        if status >= 400:
            fail(f"{_named(one)}: {message_of(after)}")
        found: Object = after
        return found

    def _send(self, path: str, one: Object, *, manager: str = _MANAGER) -> tuple[int, Any]:
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        return self._api.send(ApiCall(method="PATCH", path=path, query=query, body=one, media=_APPLY))

    def _delete(self, path: str) -> None:
        self._api.call("DELETE", path, {"propagationPolicy": "Background"})
        until_s = time.monotonic() + _GONE_S
        while self._api.call("GET", path)[0] != _NOT_FOUND:
            if time.monotonic() > until_s:
                fail(f"{path}: was deleted and is still there after {_GONE_S:g} s")
            time.sleep(_PAUSE_S)

    def _wait_for_crds(self) -> None:
        until_s = time.monotonic() + _ESTABLISHED_S
        while self._not_established:
            path = self._not_established[-1]
            if _is_established(self._api.done("GET", path)):
                self._not_established.pop()
            elif time.monotonic() > until_s:
                fail(f"{path}: is not Established after {_ESTABLISHED_S:g} s")
            else:
                time.sleep(_PAUSE_S)

    def _count(self, crd: Object) -> int:
        """The number of users' objects of one kind; 0 if the kind is gone."""
        spec = crd["spec"]
        version = spec["versions"][0]["name"]
        status, response = self._api.call("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}?limit=500")
        return len(response["items"]) if status < 400 else 0


def _not_default(found: dict[str, str], shipped: Object) -> dict[str, str]:
    defaults = yaml.safe_load(shipped["data"][EXAMPLE_KEY])
    return {key: value for key, value in found.items() if defaults.get(key) != value}


def _result(before: Object | None, after: Object) -> str:
    if before is None:
        return "created"
    versions = {one["metadata"].get("resourceVersion") for one in (before, after)}
    return "unchanged" if len(versions) == 1 else "changed"


def _is_established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _named(one: Object) -> str:
    return f"{one['kind'].lower()}/{one['metadata']['name']}"


def _print_result(one: Object, result: str) -> None:
    Progress.hide()
    click.echo(f"{_named(one)} {paint(result, _COLORS[result])}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the YAML and ask no cluster.")
@click.option(
    "--wait", is_flag=True, help="Return when every daemon is available; with --uninstall, when everything is removed."
)
@click.option("--timeout", default="5m", show_default=True, metavar="TIME", help="With --wait: how long at most.")
@click.option("--uninstall", is_flag=True, help="Take everything off again; refused while there are services.")
@click.option("--with-services", is_flag=True, help="With --uninstall: all services of all namespaces too.")
@click.option("--image", default="", metavar="IMAGE", help="Image of all daemons, with registry and tag.")
@click.option(
    "--queue-proxy-image", default="", metavar="IMAGE", help="Image of the queue-proxy; the daemons' unless it is set."
)
@click.option("--domain", default="", metavar="DOMAIN", help="Domain of public hosts, such as apps.example.org.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Where the daemons run; knative-serving.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The cluster's kubeconfig; $KUBECONFIG, else ~/.kube/config.",
)
@click.option("--context", help="Context in the kubeconfig.", metavar="NAME")
def install(*, kubeconfig: Path | None, context: str | None, **asked: Any) -> None:  # noqa: ANN401 - the options of the command
    """Put the system on a Kubernetes cluster, or bring it up to date; `kubectl apply -k config/` does the same.

    The command refuses a cluster that runs Knative Serving: both would serve the same kinds.
    """
    try:
        timeout_s = parse_duration_s(asked["timeout"])
    except InvalidValue as error:
        fail_usage(f"--timeout: {error}")
    wanted = InstallOptions(
        image=asked["image"],
        queue_proxy_image=asked["queue_proxy_image"],
        namespace=asked["namespace"],
        domain=asked["domain"],
    )
    objects = objects_of(tree_folder(), wanted)
    if asked["dry_run"]:
        click.echo(render(objects), nl=False)
        return
    api = ApiClient(kubeconfig=kubeconfig or _usual_kubeconfig(), context=context)
    installation = Installation(api, objects)
    installation.check()
    if asked["uninstall"]:
        installation.remove(with_services=asked["with_services"])
        if asked["wait"]:
            until_removed(api, objects, timeout_s=timeout_s)
        return
    installation.apply(is_waited_for=asked["wait"])
    if asked["wait"]:
        until_available(api, objects, timeout_s=timeout_s)


def _usual_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named) if named else Path.home() / ".kube" / "config"
    if not path.exists():
        fail_usage(f"{path}: no such file; name the cluster's kubeconfig with --kubeconfig")
    return path
