"""``serving install``: applies the system to a Kubernetes cluster, or removes it."""

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from serving.controller.workloads.rights import BINDING_SELECTOR
from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.knative import COMPONENTS_ANNOTATION
from serving.core.model.objects import Object, annotations_of
from serving.core.model.quantity import parse_duration_s
from serving.core.settings.parse import EXAMPLE_KEY
from serving.net.cluster.kinds import ROLE_BINDING
from serving.net.wire.tokens import KEY_MODE_FIELD, KEY_SECRET
from serving.tools.cli.client.api import ApiCall, ApiClient, Place, fail, fail_usage, message_of, place_of
from serving.tools.cli.client.output import Progress, paint, print_aside
from serving.tools.cli.client.resources import path_of as path_in
from serving.tools.cli.client.tree import (
    KNATIVE_CRDS,
    OPTIONAL_KINDS,
    OUR_LABEL,
    InstallOptions,
    component_names,
    image_problem,
    images_of,
    is_ours,
    is_unnamed,
    kinds_of,
    objects_of,
    path_of,
    render,
    tree_folder,
)
from serving.tools.cli.system.availability import until_available, until_removed

_MANAGER = "serving-install"
# Owns the ConfigMap keys set by options such as --domain, and the keys kept from a version that shipped every key.
_SETTINGS_MANAGER = "serving-install-settings"
_APPLY = "application/apply-patch+yaml"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD, _CONFIG_MAP = "CustomResourceDefinition", "ConfigMap"
_METRICS = "metrics.k8s.io/v1beta1"
_NO_COMPONENT = "none"
_PERMISSIVE = (
    "inner TLS is Permissive: this installation is older than its default, and may have pods without it. docs/inner-tls.md has the"
    " two steps to Enabled"
)
_NOT_FOUND = 404
_ESTABLISHED_S = 60.0
_PAUSE_S = 0.2
_NAMES_SHOWN_MAX = 10
_COLORS = {"created": "green", "changed": "yellow", "unchanged": "white", "kept": "yellow", "deleted": "yellow"}
# This server lacks the kind, and the installation works without the object.
_COLORS["not served"] = "yellow"


class Installation:
    """The objects of one installation, and the target cluster."""

    def __init__(self, api: ApiClient, objects: Sequence[Object]) -> None:
        self._api = api
        self._objects = objects
        self._crds = [resource for resource in objects if resource["kind"] == _CRD]
        self._not_established = [path_of(crd) for crd in self._crds]

    def check(self) -> None:
        """End the command if the server is not a Kubernetes cluster, or runs Knative Serving."""
        no_cluster = "this server has no CustomResourceDefinitions: no cluster; `serving up` needs no installation"
        self._api.done("GET", _CRDS + "?limit=1", messages={_NOT_FOUND: no_cluster})
        for name in (*(crd["metadata"]["name"] for crd in self._crds), *KNATIVE_CRDS):
            definition = self._api.peek(f"{_CRDS}/{name}")
            if definition and not is_ours(definition):
                fail(
                    f"{name} exists and belongs to another system: Knative Serving runs on this cluster, or a system with the same"
                    " kinds. Nothing was changed; uninstall that system first, or use another cluster"
                )

    def check_kinds(self) -> None:
        """End the command if the server lacks a kind of the installation."""
        kinds: dict[str, set[str]] = {}
        for resource in self._objects:
            kinds.setdefault(resource["apiVersion"], set()).add(resource["kind"])
        for version, wanted in sorted(kinds.items()):
            status, response = self._api.call("GET", f"/apis/{version}" if "/" in version else f"/api/{version}")
            served = {entry["kind"] for entry in response["resources"]} if status < 400 else set()
            if status >= 400 and status != _NOT_FOUND:
                fail(f"{version}: {message_of(response)}")
            if missing := wanted - served - OPTIONAL_KINDS:
                fail(
                    f"this server has no {' and no '.join(sorted(missing))} of {version}. Nothing was changed; install what defines"
                    " that, or leave out the component that needs it"
                )
        scales = any(resource["kind"] == "HorizontalPodAutoscaler" for resource in self._objects)
        if scales and self._api.call("GET", f"/apis/{_METRICS}")[0] == _NOT_FOUND:
            fail(
                f"this server has no {_METRICS}, which the component activator-hpa needs. Nothing was changed; install a metrics-server, or"
                " leave out the component"
            )

    def apply(self, *, is_waited_for: bool = False) -> None:
        """Create or change every object, and print the result of each. A rejected object ends the command."""
        # The namespace records the components: last, so that a failed installation does not record its components.
        namespace_object = next(resource for resource in self._objects if resource["kind"] == "Namespace")
        is_new = self._api.call("GET", path_of(namespace_object))[0] == _NOT_FOUND
        with Progress("installing", terminal_only=True) as progress:
            for resource in self._objects:
                progress.update(f"applying {_named(resource)}")
                if resource is namespace_object:
                    if is_new:
                        _print_result(resource, self._apply(_without_components(resource)))
                    continue
                if resource["kind"] not in {"Namespace", _CRD}:
                    self._wait_for_crds()
                is_settings = resource["kind"] == _CONFIG_MAP and EXAMPLE_KEY in resource["data"]
                _print_result(resource, self._apply_settings(resource) if is_settings else self._apply(resource))
            for leftover in self.leftovers():
                self._remove(leftover)
            result = self._apply(namespace_object)
            if not is_new:
                _print_result(namespace_object, result)
        namespace = _namespace_of(self._objects)
        if is_older_than_inner_tls(self._api, namespace):
            print_aside(_PERMISSIVE)
        if not is_waited_for:
            print_aside(f"the daemons are starting: kubectl -n {namespace} get pods -w (--wait waits for them)")

    def remove(self, *, with_services: bool) -> None:
        """Delete every object in reverse order. Users' services are deleted only ``with_services``."""
        present = [name for crd in self._crds for name in self._names(crd)]
        if present and not with_services:
            more = f" and {len(present) - _NAMES_SHOWN_MAX} more" if len(present) > _NAMES_SHOWN_MAX else ""
            fail(
                f"these objects would be deleted with their definitions: {', '.join(present[:_NAMES_SHOWN_MAX])}{more}; delete them first, or add"
                " --with-services"
            )
        with Progress("uninstalling", terminal_only=True) as progress:
            for resource in (*self.leftovers(), *reversed(self._objects)):
                progress.update(f"deleting {_named(resource)}")
                self._remove(resource)
            # Last, because the controller would create them again.
            everywhere = path_in(ROLE_BINDING, None)
            for binding in self._api.peek(everywhere, labelSelector=BINDING_SELECTOR).get("items") or ():
                self._remove({**binding, "apiVersion": ROLE_BINDING.api_version, "kind": ROLE_BINDING.name})

    def leftovers(self) -> list[Object]:
        """Objects of an earlier installation that this installation no longer has, in reverse order.

        CustomResourceDefinitions stay, because their deletion would delete users' objects. ConfigMaps with keys of
        other field managers stay, too.
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
        before = self._api.peek(path)
        if resource["kind"] == "Deployment" and "replicas" in before.get("spec", {}):
            # A number that only an autoscaler sets stays: to give up the field would reset it.
            resource = {**resource, "spec": {"replicas": before["spec"]["replicas"], **resource["spec"]}}
        status, after = self._send(path, resource)
        if status == _NOT_FOUND and resource["kind"] in OPTIONAL_KINDS:
            return "not served"
        if status >= 400:
            fail(f"{_named(resource)}: {message_of(after)}")
        return _result(before, after)

    def _apply_settings(self, resource: Object) -> str:
        """Apply a ConfigMap's example and the keys from the command line; return the result, such as "changed"."""
        path = path_of(resource)
        before = self._api.peek(path)
        present = before.get("data") or {}
        example = {EXAMPLE_KEY: resource["data"][EXAMPLE_KEY]}
        requested = {key: value for key, value in resource["data"].items() if key != EXAMPLE_KEY}
        if present and EXAMPLE_KEY not in present and (retained := _not_default(present, resource)):
            # An older version owns every key and would remove them: changed keys therefore get another owner.
            self._must_send(path, {**resource, "data": retained}, manager=_SETTINGS_MANAGER)
        after = self._must_send(path, {**resource, "data": example})
        if requested.items() - after["data"].items():
            query = {"fieldManager": _SETTINGS_MANAGER, "fieldValidation": "Strict"}
            after = self._api.must(ApiCall(method="PATCH", path=path, query=query, body={"data": requested}))
        result = _result(before, after)
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

    def _names(self, crd: Object) -> list[str]:
        """The names of all users' objects of one kind; empty if the kind does not exist."""
        spec = crd["spec"]
        version, kind = spec["versions"][0]["name"], spec["names"]["singular"]
        listing = self._api.peek(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}?limit=500")
        places = (resource["metadata"] for resource in listing.get("items", ()))
        return [f"{kind} {'/'.join(filter(None, (place.get('namespace'), place['name'])))}" for place in places]


def is_older_than_inner_tls(api: ApiClient, namespace: str) -> bool:
    """Whether the installation is older than TLS between the components, whose default is then Permissive."""
    core = f"/api/v1/namespaces/{namespace}"
    secret = api.peek(f"{core}/secrets/{KEY_SECRET}")
    if not secret or (secret.get("data") or {}).get(KEY_MODE_FIELD):
        return False
    settings = api.peek(f"{core}/configmaps/config-network")
    return bool(settings) and not (settings.get("data") or {}).get("system-internal-tls")


def installed_components(api: ApiClient, namespace: str) -> tuple[str, ...]:
    """The components of the last installation in a namespace."""
    annotations = annotations_of(api.peek(f"/api/v1/namespaces/{namespace}"))
    return tuple(filter(None, annotations.get(COMPONENTS_ANNOTATION, "").split(",")))


def _without_components(namespace: Object) -> Object:
    """The namespace without the record of its components."""
    metadata = namespace["metadata"]
    annotations = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key != COMPONENTS_ANNOTATION
    }
    return {**namespace, "metadata": {**metadata, "annotations": annotations}}


def _is_left(resource: Object) -> bool:
    """Whether ``serving install`` wrote an object and, if it is a ConfigMap, no other field manager did."""
    managers = {entry["manager"] for entry in resource["metadata"].get("managedFields") or ()}
    return _MANAGER in managers and (resource["kind"] != _CONFIG_MAP or managers == {_MANAGER})


def _not_default(data: dict[str, str], shipped: Object) -> dict[str, str]:
    defaults = yaml.safe_load(shipped["data"][EXAMPLE_KEY])
    return {key: value for key, value in data.items() if defaults.get(key) != value}


def _result(before: Object, after: Object) -> str:
    if not before:
        return "created"
    # Controllers write statuses concurrently, and the server lists their managers again.
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
@click.option("--dry-run", is_flag=True, help="Print the YAML without contacting a cluster.")
@click.option(
    "--wait", is_flag=True, help="Wait until every daemon is available; with --uninstall, until everything is removed."
)
@click.option("--timeout", default="5m", show_default=True, metavar="TIME", help="With --wait: maximum time to wait.")
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    help=f"Optional component of config/components; repeatable. By default, the installed components stay; "
    f"`{_NO_COMPONENT}` removes them.",
)
@click.option("--uninstall", is_flag=True, help="Uninstall everything, components too; rejected while services exist.")
@click.option("--with-services", is_flag=True, help="With --uninstall: delete all services of all namespaces too.")
@click.option(
    "--registry",
    default="",
    metavar="PREFIX",
    help="Registry and path of all images, such as registry.example/team; the image options override it.",
)
@click.option(
    "--images",
    "release",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Release folder whose images are first pushed to --registry.",
)
@click.option("--image", default="", metavar="IMAGE", help="Image of all daemons, with registry and tag.")
@click.option(
    "--queue-proxy-image",
    default="",
    metavar="IMAGE",
    help="Image of the queue-proxy.  [default: the image of the daemons]",
)
@click.option("--placement-image", default="", metavar="IMAGE", help="Image of the component placement.")
@click.option("--priority-class", default="", metavar="NAME", help="PriorityClass of all daemons.")
@click.option("--domain", default="", metavar="DOMAIN", help="Domain of public hosts, such as apps.example.org.")
@click.option(
    "-n", "--namespace", default="", metavar="NAME", help="Namespace of the daemons.  [default: knative-serving]"
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Path to the kubeconfig file.  [default: $KUBECONFIG, else ~/.kube/config]",
)
@click.option("--context", help="Name of the kubeconfig context to use.", metavar="NAME")
def install(*, kubeconfig: Path | None, context: str | None, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Install or upgrade the system on a Kubernetes cluster, as `kubectl apply -k config/` does.

    A cluster that runs Knative Serving is rejected, because both would serve the same kinds.
    """
    timeout_s, named = _timeout_s(options["timeout"]), _named_components(options)
    wanted = InstallOptions(
        **{name: options[name] for name in InstallOptions.__struct_fields__ if name != "components"},
        components=() if _NO_COMPONENT in named else named,
    )
    if options["release"] is not None:
        wanted = _pushed(options["release"], wanted, is_dry=options["dry_run"] or options["uninstall"])
    objects = _wanted_objects(wanted)
    _check_images(objects)
    if options["dry_run"]:
        click.echo(render(objects), nl=False)
        return
    api = _cluster(kubeconfig, context).api()
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
    _check_images(objects, named={wanted.image, wanted.placement_image})
    installation.check_kinds()
    installation.apply(is_waited_for=options["wait"])
    if options["wait"]:
        until_available(api, objects, timeout_s=timeout_s)


def _timeout_s(text: str) -> float:
    try:
        return parse_duration_s(text)
    except InvalidValue as error:
        fail_usage(f"--timeout: {error}")


def _named_components(options: Mapping[str, Any]) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(options["components"]))
    if named and options["uninstall"]:
        fail_usage("--uninstall removes all components; leave out --component")
    if _NO_COMPONENT in named and len(named) > 1:
        fail_usage(f"--component {_NO_COMPONENT} excludes other components")
    return named


def _pushed(release: Path, wanted: InstallOptions, *, is_dry: bool) -> InstallOptions:
    """Push the images of a release to the registry; return the options with these images."""
    if not wanted.registry or is_dry:
        fail_usage("--images pushes to the registry that --registry names, and excludes --dry-run and --uninstall")
    images = push_images(release, wanted.registry)
    return msgspec.structs.replace(
        wanted,
        image=wanted.image or images.get("serving", ""),
        queue_proxy_image=wanted.queue_proxy_image or images.get("serving-queue-proxy", ""),
        placement_image=wanted.placement_image or images.get("serving-placement", ""),
    )


def _wanted_objects(wanted: InstallOptions) -> list[Object]:
    try:
        return objects_of(tree_folder(), wanted)
    except ServingError as error:
        fail_usage(f"--component: {error}")


def _check_images(objects: Sequence[Object], *, named: Collection[str] | None = None) -> None:
    """End the command for an image without a registry.

    ``named`` are images from the user's options; None rejects the shipped images, too.
    """
    for name, image in images_of(objects).items():
        if problem := image_problem(image):
            fail_usage(f"the image of {name}: {problem}")
        if named is not None and is_unnamed(image) and image not in named:
            option = "--placement-image" if name == "placement" else "--image"
            fail_usage(f"{name} has no image: set --registry PREFIX for all images, or {option} for this one")


def _namespace_of(objects: Sequence[Object]) -> str:
    """The namespace of an installation's daemons."""
    return next(str(resource["metadata"]["name"]) for resource in objects if resource["kind"] == "Namespace")


def _with_installed(api: ApiClient, objects: list[Object], wanted: InstallOptions) -> list[Object]:
    components = installed_components(api, _namespace_of(objects))
    return _wanted_objects(msgspec.structs.replace(wanted, components=components)) if components else objects


def _cluster(kubeconfig: Path | None, context: str | None) -> Place:
    """The cluster selected by the options, else by kubectl's default kubeconfig."""
    if kubeconfig is None and not os.environ.get("KUBECONFIG"):
        kubeconfig = Path.home() / ".kube" / "config"
        if not kubeconfig.exists():
            fail_usage(f"{kubeconfig}: no such file; name the cluster's kubeconfig with --kubeconfig")
    return place_of(None, kubeconfig, context)


_SUMS = "SHA256SUMS"
_ARCHIVE = re.compile(r"(serving|serving-queue-proxy|serving-placement)-(\d[0-9A-Za-z.+]*)\.oci\.tar")


def push_images(folder: Path, registry: str) -> dict[str, str]:
    """Push a release's images with skopeo; return the images in the registry by name.

    skopeo supplies the credentials and certificate authorities of registries.

    Raises:
        ServingError: when the folder is not a release or was changed, or with skopeo's error text.
    """
    archives = {
        match[1]: (path, match[2])
        for path in sorted(folder.glob("*.oci.tar"))
        if (match := _ARCHIVE.fullmatch(path.name))
    }
    if not archives:
        raise ServingError(f"{folder} has no images; expected a folder of `make release`, with serving-VERSION.oci.tar")
    sums = _sums(folder / _SUMS)
    for path, _ in archives.values():
        if sums.get(path.name) != _digest_of(path):
            raise ServingError(f"{path.name} is not what {_SUMS} says; download the release again")
    images = {}
    with Progress("pushing images") as progress:
        for name, (path, version) in archives.items():
            images[name] = f"{registry.rstrip('/')}/{name}:{version.replace('+', '-')}"
            progress.update(f"pushing {images[name]}")
            command = ["skopeo", "copy", "--quiet", f"oci-archive:{path}", f"docker://{images[name]}"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - skopeo of the PATH
            except FileNotFoundError as error:
                raise ServingError("skopeo pushes images, and is not installed: apt-get install skopeo") from error
            if done.returncode:
                raise ServingError(f"{images[name]} was not pushed: {done.stderr.strip().splitlines()[-1]}")
    return images


def _sums(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ServingError(f"{path}: {error.strerror}; a release has it beside its images") from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
