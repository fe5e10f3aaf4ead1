"""Services of a compose file call each other by name."""

import socket
from pathlib import Path

import pytest
import yaml

from serving.core.model.objects import Object
from serving.home.processes.mounts import can_mount
from serving.home.state import StateFolder
from tests.e2e.cli_stage import Stage, clear, staged
from tests.integration.image_stage import app_image, needs_containers

CALLER = """mkdir -p /tmp/cgi-bin
printf '#!/bin/sh\\nprintf "Content-Type: text/plain\\\\r\\\\n\\\\r\\\\n"\\nwget -qO- "http://$QUERY_STRING"\\n' > /tmp/cgi-bin/call
chmod 755 /tmp/cgi-bin/call
exec httpd -f -p $PORT -h /tmp
"""
COMPOSE = {
    "services": {
        "api": {"image": "test.local/web:1", "environment": {"TARGET": "${WHICH:-none}"}, "expose": ["8088"]},
        "web": {
            "image": "test.local/web:1",
            "entrypoint": ["/bin/sh", "-c", CALLER.replace("$", "$$")],
            "ports": ["9000:80"],
            "depends_on": ["api"],
        },
    }
}
AT_ZERO = """
apiVersion: v1
kind: ConfigMap
metadata: {name: config-autoscaler, namespace: knative-serving}
data: {initial-scale: "0"}
"""
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n---\n"

APP = """import http.server, os, urllib.request

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, target = self.path.partition("?")
        text = urllib.request.urlopen("http://" + target).read() if target else os.environ["WHO"].encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
# The images do not exist: an annotation runs the command as a process.
PROCESSES = {
    "services": {
        "api": {
            "image": "localhost/none",
            "entrypoint": ["python3", "APP"],
            "expose": ["PORT"],
            "environment": {"WHO": "first"},
        },
        "web": {"image": "localhost/none", "entrypoint": ["python3", "APP"], "expose": ["PORT"]},
    }
}

pytestmark = pytest.mark.timeout(300)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


def as_process(document: Object, command: str) -> Object:
    """A converted document whose Service runs a command of this machine instead of its image."""
    if document["kind"] == "Service":
        template = document["spec"]["template"]
        template.setdefault("metadata", {}).setdefault("annotations", {})["serving.dev/command"] = command
        (container,) = template["spec"]["containers"]
        container.pop("command", None)
    return document


@pytest.mark.skipif(not can_mount(), reason="no mount namespaces here")
def test_processes_and_preloaded_forks_call_services_by_name(serving: Stage, tmp_path: Path) -> None:
    """Starts up to four pods in each of two namespaces; a service has no pod until it is called."""
    port = str(free_port())
    (tmp_path / "app.py").write_text(APP)
    text = yaml.safe_dump(PROCESSES).replace("APP", str(tmp_path / "app.py")).replace("PORT", port)
    (tmp_path / "compose.yaml").write_text(text)
    serving("apply", "-f", "-", stdin=AT_ZERO)
    converted = serving("convert", str(tmp_path / "compose.yaml")).stdout
    manifests = yaml.safe_dump_all(
        as_process(document, f"python3 {tmp_path / 'app.py'}") for document in yaml.safe_load_all(converted)
    )
    serving("apply", "-f", "-", "--wait", stdin=manifests)
    serving("apply", "-f", "-", stdin=NAMESPACE)
    serving("apply", "-n", "other", "-f", "-", "--wait", stdin=manifests.replace("first", "second"))
    serving("deploy", "warm", str(tmp_path), "--command", "python3 app.py", "--preload")
    for caller in ("web", "warm"):
        serving.until_status("first", caller, f"/?api:{port}/")
    # The next pod is a fork.
    serving.until("Preloaded", "describe", "warm")
    pod = serving("get", "pods", "-l", "serving.knative.dev/service=warm", "-o", "name").stdout.strip()
    serving("delete", pod)
    serving.until_status("first", "warm", f"/?api:{port}/")
    serving.until_status("second", "web", f"/?api:{port}/", "-n", "other")
    inner = StateFolder(serving.state).read_ports()["inner"]
    for host in (f"api:{inner}", f"api.default.svc:{port}", f"api.default.svc.cluster.local:{inner}"):
        assert serving("invoke", "web", f"/?{host}/").stdout == "first", host
    assert serving("invoke", "web", f"/?api.other:{port}/").stdout == "second"
    assert f"http://api:{port}/" in serving("describe", "api").stdout
    clear(serving)


@needs_containers()
def test_rootless_containers_call_each_other_by_name(tmp_path: Path) -> None:
    """Starts a system and two containers that share the network of this machine."""
    app_image(tmp_path / "web.tar")
    port = str(free_port())
    compose = yaml.safe_dump(COMPOSE).replace("8088", port)
    (tmp_path / "compose.yaml").write_text(compose)
    with staged(tmp_path / "state", SERVING_CONTAINER_RUNTIME="rootless") as serving:
        serving("image", "import", str(tmp_path / "web.tar"))
        serving("apply", "-f", "-", "--wait", stdin=serving("convert", str(tmp_path / "compose.yaml")).stdout)
        serving.until_status("TARGET=none", "web", f"/cgi-bin/call?api:{port}/me")


@needs_containers()
def test_compose_services_call_each_other_by_name_per_namespace(serving: Stage, tmp_path: Path) -> None:
    """Starts four containers: two services with the same names in each of two namespaces."""
    app_image(tmp_path / "web.tar")
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(COMPOSE))
    (tmp_path / ".env").write_text("WHICH=first\n")
    serving("image", "import", str(tmp_path / "web.tar"))
    manifests = serving("convert", str(tmp_path / "compose.yaml")).stdout
    second = manifests.replace("first", "second")
    serving("apply", "-f", "-", "--wait", stdin=manifests)
    serving("apply", "-f", "-", stdin=NAMESPACE)
    serving("apply", "-n", "other", "-f", "-", "--wait", stdin=second)
    serving.until_status("TARGET=first PORT=8088 ", "web", "/cgi-bin/call?api:8088/me")
    serving.until_status("TARGET=second PORT=8088 ", "web", "/cgi-bin/call?api:8088/me", "-n", "other")
    # Cluster names of the services also work, at the default port and the service's port.
    for host in ("api.default", "api.default.svc.cluster.local", "api.default:8088"):
        assert serving("invoke", "web", f"/cgi-bin/call?{host}/me", "-n", "other").stdout.startswith("TARGET=first")
