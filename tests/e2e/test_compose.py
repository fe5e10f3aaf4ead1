"""The services of a compose file, which call each other by their names."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.cli_stage import staged
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
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n---\n"

pytestmark = [pytest.mark.timeout(300), needs_containers()]


def test_services_of_a_compose_file_call_each_other_by_name(tmp_path: Path) -> None:
    """Starts a system and four containers: two services in each of two namespaces, whose names must not mix."""
    app_image(tmp_path / "web.tar")
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(COMPOSE))
    (tmp_path / ".env").write_text("WHICH=first\n")
    with staged(tmp_path / "state") as serving:
        serving("image", "import", str(tmp_path / "web.tar"))
        manifests = serving("convert", str(tmp_path / "compose.yaml")).stdout
        second = manifests.replace("first", "second")
        serving("apply", "-f", "-", "--wait", stdin=manifests)
        serving("apply", "-f", "-", stdin=NAMESPACE)
        serving("apply", "-n", "other", "-f", "-", "--wait", stdin=second)
        serving.until_status("TARGET=first PORT=8088 ", "web", "/cgi-bin/call?api:8088/me")
        serving.until_status("TARGET=second PORT=8088 ", "web", "/cgi-bin/call?api:8088/me", "-n", "other")
        # The names of the cluster still lead there, at the port that each service has.
        for host in ("api.default", "api.default.svc.cluster.local", "api.default:8088"):
            assert serving("invoke", "web", f"/cgi-bin/call?{host}/me", "-n", "other").stdout.startswith("TARGET=first")
