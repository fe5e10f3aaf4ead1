"""As much of a cluster's API as an installation meets: any object at any path, server-side apply, definitions.

It keeps what a real server keeps that matters there: an apply that changes nothing keeps the version, a setting that
another manager has set is a conflict, definitions take a moment to be Established, jobs cannot be changed.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml

__all__ = ["BareCluster"]

Object = dict[str, Any]
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class BareCluster(ThreadingHTTPServer):
    """``objects`` by path; ``calls`` are methods and paths of all writes; ``theirs`` is what others have set there."""

    daemon_threads = True

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.theirs: dict[str, dict[str, str]] = {}
        self.calls: list[tuple[str, str]] = []
        self.has_definitions = True
        self._version = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig that names it, as a cluster's tool writes it."""
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

    def put(self, path: str, one: Object) -> Object:
        """Keep an object under a new version."""
        self._version += 1
        kept = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self._version)}}
        self.objects[path] = kept
        return kept

    def get(self, path: str) -> tuple[int, Object]:
        """Answer to a GET: an object, or the list of all below a path."""
        if not self.has_definitions and path.startswith(_CRDS):
            return 404, _status("the server could not find the requested resource", 404)
        found = self.objects.get(path)
        if found is not None:
            if path.startswith(_CRDS):
                # Established when it is looked at next.
                status = {"conditions": [{"type": "Established", "status": "True"}]}
                self.objects[path] = {**found, "status": status}
            return 200, found
        below = [one for place, one in self.objects.items() if place.rpartition("/")[0] == path]
        if below or path.rpartition("/")[2].endswith("s"):
            return 200, {"kind": "List", "metadata": {}, "items": below}
        return 404, _status(f"{path} not found", 404)

    def apply(self, path: str, one: Object, *, is_forced: bool) -> tuple[int, Object]:
        """Answer to a server-side apply."""
        before = self.objects.get(path)
        if before is None:
            return 201, self.put(path, one)
        if one["kind"] == "Job" and before["spec"] != one["spec"]:
            return 422, _status("spec.template: field is immutable", 422)
        theirs = self.theirs.get(path, {})
        clashes = [key for key, value in theirs.items() if one.get("data", {}).get(key, value) != value]
        if clashes and not is_forced:
            return 409, _status(f'conflict with "kubectl-edit": .data.{clashes[0]}', 409)
        without = {key: value for key, value in before.items() if key != "status"}
        version = before["metadata"]["resourceVersion"]
        if without == {**one, "metadata": {**one["metadata"], "resourceVersion": version}}:
            return 200, before
        return 200, self.put(path, one)


class _Handler(BaseHTTPRequestHandler):
    server: BareCluster
    protocol_version = "HTTP/1.1"
    # Head and body in one piece: in two, the second waits 40 ms for the first to be acknowledged.
    wbufsize = -1

    def do_GET(self) -> None:
        self._answer(*self.server.get(self.path.partition("?")[0]))

    def do_PATCH(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.calls.append(("PATCH", path))
        if self.headers["Content-Type"] != "application/apply-patch+yaml" or "fieldManager=" not in query:
            self._answer(415, _status("only server-side apply here", 415))
            return
        self._answer(*self.server.apply(path, self._body(), is_forced="force=true" in query))

    def do_DELETE(self) -> None:
        self._body()
        self.server.calls.append(("DELETE", self.path))
        found = self.server.objects.pop(self.path, None)
        self._answer(*((404, _status("not found", 404)) if found is None else (200, found)))

    def _body(self) -> Object:
        found: Object = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        return found

    def _answer(self, status: int, one: Object) -> None:
        text = json.dumps(one).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


def _status(message: str, code: int) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "message": message, "code": code}
