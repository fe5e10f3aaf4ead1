"""``serving install``: applies the system to a Kubernetes cluster, or removes it."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.knative import COMPONENTS_ANNOTATION
from serving.core.model.objects import Object
from serving.core.model.quantity import parse_duration_s
from serving.core.settings.parse import EXAMPLE_KEY
from serving.net.wire.tokens import KEY_MODE_FIELD, KEY_SECRET
from serving.tools.cli.client.api import ApiCall, ApiClient, fail, fail_usage, message_of
from serving.tools.cli.client.components import component_names
from serving.tools.cli.client.output import Progress, paint, print_aside
from serving.tools.cli.client.tree import (
    KNATIVE_CRDS,
    OPTIONAL_KINDS,
    OUR_LABEL,
    InstallOptions,
    is_ours,
    kinds_of,
    objects_of,
    path_of,
    render,
    tree_folder,
)
from serving.tools.cli.system.availability import until_available, until_removed

_MANAGER = "serving-install"
# Owns the keys of ConfigMaps that --domain and its like set, and those kept from a version that shipped every key.
_SETTINGS_MANAGER = "serving-install-settings"
_APPLY = "application/apply-patch+yaml"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD, _CONFIG_MAP = "CustomResourceDefinition", "ConfigMap"
_NO_COMPONENT = "none"
_PERMISSIVE = (
    "inner TLS is Permissive: this installation is older than its default, and may have pods without it. docs/inner-tls.md has the"
    " two steps to Enabled"
)
_NOT_FOUND = 404
_ESTABLISHED_S = 60.0
_PAUSE_S = 0.2
_COLORS = {"created": "green", "changed": "yellow", "unchanged": "white", "kept": "yellow", "deleted": "yellow"}
# This server has no such kind, and the installation does without the object.
_COLORS["not served"] = "yellow"


class Installation:
    """The objects of one installation, and their target cluster."""

    def __init__(self, api: ApiClient, objects: Sequence[Object]) -> None:
        self._api = api
        self._objects = objects
        self._crds = [resource for resource in objects if resource["kind"] == _CRD]
        self._not_established = [path_of(crd) for crd in self._crds]

    def check(self) -> None:
        """End the command if the server is no cluster, or runs Knative Serving."""
        status, response = self._api.call("GET", _CRDS + "?limit=1")
        if status == _NOT_FOUND:
            fail("this server has no CustomResourceDefinitions: no cluster; `serving up` needs no installation")
        if status >= 400:
            fail(message_of(response))
        for name in (*(crd["metadata"]["name"] for crd in self._crds), *KNATIVE_CRDS):
            status, definition = self._api.call("GET", f"{_CRDS}/{name}")
            if status < 400 and not is_ours(definition):
                fail(
                    f"{name} is there and is not ours: Knative Serving runs on this cluster, or something that shares its"
                    " kinds. Nothing was touched; uninstall that first, or take another cluster"
                )

    def apply(self, *, is_waited_for: bool = False) -> None:
        """Create or change every object and print the result of each; a refused object ends the command."""
        with Progress("installing") as progress:
            for resource in self._objects:
                progress.update(f"applying {_named(resource)}")
                if resource["kind"] not in {"Namespace", _CRD}:
                    self._wait_for_crds()
                is_settings = resource["kind"] == _CONFIG_MAP and EXAMPLE_KEY in resource["data"]
                _print_result(resource, self._apply_settings(resource) if is_settings else self._apply(resource))
            for leftover in self.leftovers():
                self._remove(leftover)
        namespace = _namespace_of(self._objects)
        if is_older_than_inner_tls(self._api, namespace):
            print_aside(_PERMISSIVE)
        if not is_waited_for:
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
            for resource in (*self.leftovers(), *reversed(self._objects)):
                progress.update(f"deleting {_named(resource)}")
                self._remove(resource)

    def leftovers(self) -> list[Object]:
        """Objects that an earlier installation applied and this one has not, in reverse order.

        Definitions stay, because users' objects would go with them, and so do ConfigMaps with keys of other managers.
        """
        present = {path_of(resource) for resource in self._objects}
        namespace = _namespace_of(self._objects)
        label = {"labelSelector": "=".join(OUR_LABEL)}
        leftovers = []
        for kind in reversed(kinds_of(self._objects, namespace)):
            status, response = self._api.send(ApiCall(path=path_of(kind, is_whole=True), query=label))
            if status >= 400 and status != _NOT_FOUND:
                fail(f"{kind['kind']}: {message_of(response)}")
            items = response["items"] if status < 400 else ()
            leftovers += [
                {**resource, "apiVersion": kind["apiVersion"], "kind": kind["kind"]}
                for resource in items
                if is_ours(resource)
            ]
        return [resource for resource in leftovers if path_of(resource) not in present and _is_left(resource)]

    def _remove(self, resource: Object) -> None:
        status, response = self._api.call("DELETE", path_of(resource), {"propagationPolicy": "Background"})
        if status >= 400 and status != _NOT_FOUND:
            fail(f"{_named(resource)}: {message_of(response)}")
        if status < 400:
            _print_result(resource, "deleted")

    def _apply(self, resource: Object) -> str:
        path = path_of(resource)
        status, before = self._api.call("GET", path)
        status_after, after = self._send(path, resource)
        if status_after == _NOT_FOUND and resource["kind"] in OPTIONAL_KINDS:
            return "not served"
        if status_after >= 400:
            fail(f"{_named(resource)}: {message_of(after)}")
        return _result(before if status < 400 else None, after)

    def _apply_settings(self, resource: Object) -> str:
        """Apply the example of a ConfigMap, then the keys that the command line names. Every other key stays."""
        path = path_of(resource)
        status, before = self._api.call("GET", path)
        present = (before.get("data") or {}) if status < 400 else {}
        example = {EXAMPLE_KEY: resource["data"][EXAMPLE_KEY]}
        requested = {key: value for key, value in resource["data"].items() if key != EXAMPLE_KEY}
        if present and EXAMPLE_KEY not in present and (retained := _not_default(present, resource)):
            # An older version owns every key and would remove them: keys that differ from their default get another owner.
            self._must_send(path, {**resource, "data": retained}, manager=_SETTINGS_MANAGER)
        after = self._must_send(path, {**resource, "data": example})
        if requested.items() - after["data"].items():
            query = {"fieldManager": _SETTINGS_MANAGER, "fieldValidation": "Strict"}
            after = self._api.must(ApiCall(method="PATCH", path=path, query=query, body={"data": requested}))
        result = _result(before if status < 400 else None, after)
        return "kept" if result == "unchanged" and after["data"].keys() - {EXAMPLE_KEY} else result

    def _must_send(self, path: str, resource: Object, *, manager: str = _MANAGER) -> Object:
        status, after = self._send(path, resource, manager=manager)
        if status >= 400:
            fail(f"{_named(resource)}: {message_of(after)}")
        applied: Object = after
        return applied

    def _send(self, path: str, resource: Object, *, manager: str = _MANAGER) -> tuple[int, Any]:
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        return self._api.send(ApiCall(method="PATCH", path=path, query=query, body=resource, media=_APPLY))

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


def is_older_than_inner_tls(api: ApiClient, namespace: str) -> bool:
    """Whether an installation has the mode Permissive by default, because its key is older than inner TLS."""
    core = f"/api/v1/namespaces/{namespace}"
    status, secret = api.call("GET", f"{core}/secrets/{KEY_SECRET}")
    if status >= 400 or (secret.get("data") or {}).get(KEY_MODE_FIELD):
        return False
    status, settings = api.call("GET", f"{core}/configmaps/config-network")
    return status < 400 and not (settings.get("data") or {}).get("system-internal-tls")


def installed_components(api: ApiClient, namespace: str) -> tuple[str, ...]:
    """The components of the last installation in a namespace."""
    status, response = api.call("GET", f"/api/v1/namespaces/{namespace}")
    annotations = (response["metadata"].get("annotations") or {}) if status < 400 else {}
    return tuple(filter(None, annotations.get(COMPONENTS_ANNOTATION, "").split(",")))


def _is_left(resource: Object) -> bool:
    """Whether an object was applied by ``serving install`` and, for a ConfigMap, holds no keys of other managers."""
    managers = {entry["manager"] for entry in resource["metadata"].get("managedFields") or ()}
    return _MANAGER in managers and (resource["kind"] != _CONFIG_MAP or managers == {_MANAGER})


def _not_default(data: dict[str, str], shipped: Object) -> dict[str, str]:
    defaults = yaml.safe_load(shipped["data"][EXAMPLE_KEY])
    return {key: value for key, value in data.items() if defaults.get(key) != value}


def _result(before: Object | None, after: Object) -> str:
    if before is None:
        return "created"
    # Controllers write statuses meanwhile, and the server lists its managers again.
    mine, theirs = (
        {
            **state,
            "status": None,
            "metadata": {**state["metadata"], "managedFields": None, "resourceVersion": None},
        }
        for state in (before, after)
    )
    return "unchanged" if mine == theirs else "changed"


def _is_established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def _named(resource: Object) -> str:
    return f"{resource['kind'].lower()}/{resource['metadata']['name']}"


def _print_result(resource: Object, result: str) -> None:
    Progress.hide()
    click.echo(f"{_named(resource)} {paint(result, _COLORS[result])}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the YAML and ask no cluster.")
@click.option(
    "--wait", is_flag=True, help="Return when every daemon is available; with --uninstall, when everything is removed."
)
@click.option("--timeout", default="5m", show_default=True, metavar="TIME", help="With --wait: how long at most.")
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    help="A component of config/components beside the base, repeatable; those installed before unless one is named,"
    f" `{_NO_COMPONENT}` removes them.",
)
@click.option(
    "--uninstall", is_flag=True, help="Take everything off again, components too; refused while there are services."
)
@click.option("--with-services", is_flag=True, help="With --uninstall: all services of all namespaces too.")
@click.option("--image", default="", metavar="IMAGE", help="Image of all daemons, with registry and tag.")
@click.option(
    "--queue-proxy-image", default="", metavar="IMAGE", help="Image of the queue-proxy; the daemons' unless it is set."
)
@click.option("--placement-image", default="", metavar="IMAGE", help="Image of the component placement.")
@click.option("--domain", default="", metavar="DOMAIN", help="Domain of public hosts, such as apps.example.org.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Where the daemons run; knative-serving.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The cluster's kubeconfig; $KUBECONFIG, else ~/.kube/config.",
)
@click.option("--context", help="Context in the kubeconfig.", metavar="NAME")
def install(*, kubeconfig: Path | None, context: str | None, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Put the system on a Kubernetes cluster, or bring it up to date; `kubectl apply -k config/` does the same.

    The command refuses a cluster that runs Knative Serving: both would serve the same kinds.
    """
    try:
        timeout_s = parse_duration_s(options["timeout"])
    except InvalidValue as error:
        fail_usage(f"--timeout: {error}")
    named = tuple(dict.fromkeys(options["components"]))
    if named and options["uninstall"]:
        fail_usage("--uninstall removes all components; leave out --component")
    if _NO_COMPONENT in named and len(named) > 1:
        fail_usage(f"--component {_NO_COMPONENT} goes alone")
    wanted = InstallOptions(
        image=options["image"],
        queue_proxy_image=options["queue_proxy_image"],
        placement_image=options["placement_image"],
        namespace=options["namespace"],
        domain=options["domain"],
        components=() if _NO_COMPONENT in named else named,
    )
    objects = _wanted_objects(wanted)
    if options["dry_run"]:
        click.echo(render(objects), nl=False)
        return
    api = ApiClient(kubeconfig=kubeconfig or _usual_kubeconfig(), context=context)
    if options["uninstall"]:
        objects = _wanted_objects(msgspec.structs.replace(wanted, components=tuple(component_names(tree_folder()))))
    elif not named:
        objects = _with_installed(api, objects, wanted)
    installation = Installation(api, objects)
    installation.check()
    if options["uninstall"]:
        installation.remove(with_services=options["with_services"])
        if options["wait"]:
            until_removed(api, objects, timeout_s=timeout_s)
        return
    installation.apply(is_waited_for=options["wait"])
    if options["wait"]:
        until_available(api, objects, timeout_s=timeout_s)


def _wanted_objects(wanted: InstallOptions) -> list[Object]:
    try:
        return objects_of(tree_folder(), wanted)
    except ServingError as error:
        fail_usage(f"--component: {error}")


def _namespace_of(objects: Sequence[Object]) -> str:
    """The namespace of an installation's daemons."""
    return next(str(resource["metadata"]["name"]) for resource in objects if resource["kind"] == "Namespace")


def _with_installed(api: ApiClient, objects: list[Object], wanted: InstallOptions) -> list[Object]:
    components = installed_components(api, _namespace_of(objects))
    return _wanted_objects(msgspec.structs.replace(wanted, components=components)) if components else objects


def _usual_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named) if named else Path.home() / ".kube" / "config"
    if not path.exists():
        fail_usage(f"{path}: no such file; name the cluster's kubeconfig with --kubeconfig")
    return path
