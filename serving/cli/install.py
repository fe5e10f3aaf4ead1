"""``serving install``: puts the system on a cluster, says what it makes, and takes it off again.

Everything is applied on the server's side under one field manager, so that what others have set stays theirs. Settings that
somebody has changed in a ConfigMap are kept; all else becomes as it is shipped. The kinds of Knative are ours or
Knative's, never both: where its definitions are, nothing is touched.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from serving.cli.api import Api, Call, fail, fail_usage, message_of
from serving.cli.progress import Progress, paint, say_aside
from serving.cli.tree import KNATIVE_CRDS, Wanted, is_ours, objects_of, path_of, render, tree_folder
from serving.cluster.port import Object

__all__ = ["Installation", "install"]

_MANAGER = "serving-install"
_APPLY = "application/apply-patch+yaml"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD, _CONFIG_MAP, _JOB = "CustomResourceDefinition", "ConfigMap", "Job"
_NOT_FOUND, _CONFLICT, _INVALID = 404, 409, 422
_ESTABLISHED_S = 60.0
_GONE_S = 60.0
_PAUSE_S = 0.2
_COLORS = {"created": "green", "changed": "yellow", "unchanged": "white", "kept": "yellow", "deleted": "yellow"}


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the YAML and ask no cluster.")
@click.option("--uninstall", is_flag=True, help="Take everything off again; refused while there are services.")
@click.option("--with-services", is_flag=True, help="With --uninstall: all services of all namespaces too.")
@click.option("--image", default="", metavar="IMAGE", help="Image of all daemons, with registry and tag.")
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

    Beside Knative Serving it is refused: both would answer for the same kinds.
    """
    wanted = Wanted(image=asked["image"], namespace=asked["namespace"], domain=asked["domain"])
    objects = objects_of(tree_folder(), wanted)
    if asked["dry_run"]:
        click.echo(render(objects), nl=False)
        return
    made = Installation(Api(kubeconfig=kubeconfig or _usual_kubeconfig(), context=context), objects)
    made.check()
    if asked["uninstall"]:
        made.remove(with_services=asked["with_services"])
    else:
        made.apply()


class Installation:
    """What is to be on one cluster."""

    def __init__(self, api: Api, objects: Sequence[Object]) -> None:
        self._api = api
        self._objects = objects
        self._crds = [one for one in objects if one["kind"] == _CRD]
        self._not_established = [path_of(one) for one in self._crds]

    def check(self) -> None:
        """End the command where nothing may be touched: Knative is there, or it is no cluster."""
        status, answer = self._api.call("GET", _CRDS + "?limit=1")
        if status == _NOT_FOUND:
            fail("this server has no CustomResourceDefinitions: no cluster; `serving up` needs no installation")
        if status >= 400:
            fail(message_of(answer))
        for name in (*(one["metadata"]["name"] for one in self._crds), *KNATIVE_CRDS):
            status, found = self._api.call("GET", f"{_CRDS}/{name}")
            if status < 400 and not is_ours(found):
                fail(
                    f"{name} is there and is not ours: Knative Serving runs on this cluster, or something that shares its"
                    " kinds. Nothing was touched; uninstall that first, or take another cluster"
                )

    def apply(self) -> None:
        """Make or change everything; an object that is refused ends the command."""
        with Progress("installing") as progress:
            for one in self._objects:
                progress.tell(f"applying {_named(one)}")
                if one["kind"] not in {"Namespace", _CRD}:
                    self._wait_for_crds()
                _say(one, self._apply(one))
        namespace = next(one["metadata"]["name"] for one in self._objects if one["kind"] == "Namespace")
        say_aside(f"watch it start: kubectl -n {namespace} get pods -w")

    def remove(self, *, with_services: bool) -> None:
        """Delete everything, the other way round. Services of users are deleted only if that is said."""
        count = sum(map(self._count, self._crds))
        if count and not with_services:
            fail(
                f"there are {count} services, revisions and the like, which go with their definitions: delete them first,"
                " or say --with-services"
            )
        with Progress("uninstalling") as progress:
            for one in reversed(self._objects):
                progress.tell(f"deleting {_named(one)}")
                body = {"propagationPolicy": "Background"}
                status, answer = self._api.call("DELETE", path_of(one), body)
                if status >= 400 and status != _NOT_FOUND:
                    fail(f"{_named(one)}: {message_of(answer)}")
                if status < 400:
                    _say(one, "deleted")

    def _apply(self, one: Object) -> str:
        """What became of an object: created, changed, unchanged, or kept where settings are somebody's."""
        path = path_of(one)
        status, before = self._api.call("GET", path)
        version = before["metadata"].get("resourceVersion") if status < 400 else None
        is_settings = one["kind"] == _CONFIG_MAP
        status, after = self._send(path, one, is_forced=not is_settings)
        is_kept = status == _CONFLICT and is_settings
        if is_kept:
            theirs = {**one, "data": {**one["data"], **before.get("data", {})}}
            status, after = self._send(path, theirs, is_forced=True)
        if status == _INVALID and one["kind"] == _JOB:
            # A job cannot be changed; this one has not ended.
            self._delete(path)
            status, after = self._send(path, one, is_forced=True)
        if status >= 400:
            fail(f"{_named(one)}: {message_of(after)}")
        if is_kept:
            return "kept"
        if version is None:
            return "created"
        return "unchanged" if after["metadata"].get("resourceVersion") == version else "changed"

    def _send(self, path: str, one: Object, *, is_forced: bool) -> tuple[int, Any]:
        query = {"fieldManager": _MANAGER, "force": "true" if is_forced else "false", "fieldValidation": "Strict"}
        return self._api.ask(Call(method="PATCH", path=path, query=query, body=one, media=_APPLY))

    def _delete(self, path: str) -> None:
        self._api.call("DELETE", path, {"propagationPolicy": "Background"})
        until_s = time.monotonic() + _GONE_S
        while self._api.call("GET", path)[0] != _NOT_FOUND:
            if time.monotonic() > until_s:
                fail(f"{path}: was deleted and is still there after {_GONE_S:g} s")
            time.sleep(_PAUSE_S)

    def _wait_for_crds(self) -> None:
        """Until the server serves our kinds; asked once for each."""
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
        """Objects of users of one kind; none where the kind is gone."""
        spec = crd["spec"]
        version = spec["versions"][0]["name"]
        status, answer = self._api.call("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}?limit=500")
        return len(answer["items"]) if status < 400 else 0


def _usual_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named) if named else Path.home() / ".kube" / "config"
    if not path.exists():
        fail_usage(f"{path}: there is none; name the cluster's with --kubeconfig")
    return path


def _is_established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _named(one: Object) -> str:
    return f"{one['kind'].lower()}/{one['metadata']['name']}"


def _say(one: Object, result: str) -> None:
    Progress.hide()
    click.echo(f"{_named(one)} {paint(result, _COLORS[result])}")
