"""The part of a cluster's API that an installation uses: objects at any path, server-side apply, definitions.

It keeps what a real server keeps that matters there: an apply that changes nothing keeps the version and removes the
keys of data that its manager owned and leaves out, unless another manager owns them too; definitions take a moment to
be Established.
"""

import json
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml

from serving.tools.cli.client.tree import InstallOptions, component_names, objects_of, tree_folder
from serving.tools.cli.client.tree import path_of as place_of

Object = dict[str, Any]
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Version, kind and a path of each.
_KINDS = {
    (each["apiVersion"], each["kind"], place_of(each))
    for each in objects_of(tree_folder(), InstallOptions(components=tuple(component_names(tree_folder()))))
} | {("metrics.k8s.io/v1beta1", "NodeMetrics", "/apis/metrics.k8s.io/v1beta1/nodes")}


class BareCluster(ThreadingHTTPServer):
    """``objects`` by path; ``calls`` are methods and paths of all writes; ``owners`` of data: keys by path and manager.

    ``not_served`` is a part of the paths of a kind that this server does not have.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.owners: dict[str, dict[str, set[str]]] = {}
        self.calls: list[tuple[str, str]] = []
        self.has_definitions = True
        self.not_served = ""
        self.on_get: Callable[[str], None] = lambda _: None
        self._version = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig of the server, as a cluster's tool writes it."""
        path = folder / "cluster.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def put(self, path: str, resource: Object) -> Object:
        """Store an object with a new version."""
        self._version += 1
        result = {**resource, "metadata": {**resource["metadata"], "resourceVersion": str(self._version)}}
        self.objects[path] = result
        return result

    def get(self, path: str) -> tuple[int, Object]:
        """Respond to a GET: an object, or the list of all below a path."""
        self.on_get(path)
        if self._lacks(path):
            return 404, _status(f"{path} not found", 404)
        if not self.has_definitions and path.startswith(_CRDS):
            return 404, _status("the server could not find the requested resource", 404)
        if served := {
            kind
            for version, kind, place in _KINDS
            if path in (f"/api/{version}", f"/apis/{version}") and not self._lacks(place)
        } | self._defined(path):
            return 200, {"kind": "APIResourceList", "resources": [{"kind": kind} for kind in sorted(served)]}
        result = self.objects.get(path)
        if result is not None:
            if path.startswith(_CRDS):
                # A definition is established at its next read.
                status = {"conditions": [{"type": "Established", "status": "True"}]}
                self.objects[path] = {**result, "status": status}
            return 200, result
        if _is_collection(path):
            below = [resource for place, resource in self.objects.items() if place.rpartition("/")[0] == path]
            return 200, {"kind": "List", "metadata": {}, "items": below}
        return 404, _status(f"{path} not found", 404)

    def _defined(self, path: str) -> set[str]:
        """The kinds below a path by the definitions of the server."""
        definitions = [resource for place, resource in self.objects.items() if place.startswith(_CRDS)]
        # A test's definition of another system has only a name.
        specs = [definition["spec"] for definition in definitions if "spec" in definition]
        return {
            spec["names"]["kind"] for spec in specs if path == f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
        }

    def _lacks(self, path: str) -> bool:
        return bool(self.not_served) and self.not_served in path

    def apply(self, path: str, resource: Object, *, manager: str) -> tuple[int, Object]:
        """Respond to a server-side apply with force."""
        if self._lacks(path):
            return 404, _status("the server could not find the requested resource", 404)
        owners = self.owners.setdefault(path, {})
        owned_before = owners.get(manager, set())
        owners[manager] = set(resource.get("data") or {})
        managers = [{"manager": name, "operation": "Apply"} for name in owners]
        resource = {**resource, "metadata": {**resource["metadata"], "managedFields": managers}}
        before = self.objects.get(path)
        if before is None:
            return 201, self.put(path, resource)
        gone = owned_before.difference(*owners.values())
        result = {key: value for key, value in (before.get("data") or {}).items() if key not in gone}
        after = {**resource, "data": {**result, **resource["data"]}} if resource.get("data") else resource
        version = before["metadata"]["resourceVersion"]
        without = {key: value for key, value in before.items() if key != "status"}
        if without == {**after, "metadata": {**resource["metadata"], "resourceVersion": version}}:
            return 200, before
        return 200, self.put(path, after)

    def merge(self, path: str, patch: Object, *, manager: str) -> tuple[int, Object]:
        """Respond to a merge patch of a ConfigMap's data."""
        owners = self.owners.setdefault(path, {})
        owners.setdefault(manager, set()).update(patch["data"])
        before = self.objects[path]
        managers = [{"manager": name, "operation": "Apply"} for name in owners]
        metadata = {**before["metadata"], "managedFields": managers}
        return 200, self.put(path, {**before, "metadata": metadata, "data": {**before["data"], **patch["data"]}})


class _Handler(BaseHTTPRequestHandler):
    server: BareCluster
    protocol_version = "HTTP/1.1"
    # Send head and body in one write; otherwise the body is delayed by 40 ms until the head is acknowledged.
    wbufsize = -1

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self._knows(path):
            self._respond(*self.server.get(path))

    def do_POST(self) -> None:
        self._body()
        if self._knows(self.path):
            self._respond(501, _status("this server creates objects by server-side apply alone", 501))

    def _knows(self, path: str) -> bool:
        """Whether the path's kind is defined; if it is not, respond as a real server does."""
        is_known = self.server.has_definitions or ".dev/" not in path
        if not is_known:
            self._respond_text(404, b"404 page not found\n")
        return is_known

    def do_PATCH(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.calls.append(("PATCH", path))
        qsl = dict(urllib.parse.parse_qsl(query))
        media, manager = self.headers["Content-Type"], qsl.get("fieldManager", "")
        if media == "application/apply-patch+yaml" and manager and qsl.get("force") == "true":
            self._respond(*self.server.apply(path, self._body(), manager=manager))
        elif media == "application/merge-patch+json" and manager:
            self._respond(*self.server.merge(path, self._body(), manager=manager))
        else:
            self._respond(415, _status(f"not one of the patches of an installation: {media}", 415))

    def do_DELETE(self) -> None:
        self._body()
        self.server.calls.append(("DELETE", self.path))
        resource = self.server.objects.pop(self.path, None)
        self._respond(*((404, _status("not found", 404)) if resource is None else (200, resource)))

    def _body(self) -> Object:
        document: Object = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        return document

    def _respond(self, status: int, fields: Object) -> None:
        self._respond_text(status, json.dumps(fields).encode())

    def _respond_text(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Do nothing."""


def _is_collection(path: str) -> bool:
    """Whether a path ends with a plural: /api/VERSION or /apis/GROUP/VERSION, a namespace perhaps, and then names by pairs."""
    parts = path.strip("/").split("/")
    return len(parts[2 if parts[0] == "api" else 3 :]) % 2 == 1


def _status(message: str, code: int) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "message": message, "code": code}
