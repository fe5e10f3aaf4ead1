"""A local image registry, with or without a password, and uploads to it."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.core.model.objects import Object
from tests.eventually import until

REGISTRY, SKOPEO = shutil.which("docker-registry"), shutil.which("skopeo")
# "me:hush", by bcrypt.
_USERS = "me:$2b$05$R615kkVyCBeKTQ3rkel4PeHhrlWsASAz3cowZFVYJz4AOeI0ghfHO\n"
_WORD = "hush"


@contextlib.asynccontextmanager
async def a_registry(tmp_path: Path, *, is_open: bool = True) -> AsyncIterator[str]:
    """A registry; yields its address. Skips the test if no registry is installed."""
    if not REGISTRY or not SKOPEO:
        pytest.skip("needs docker-registry and skopeo (apt-get install docker-registry skopeo)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (tmp_path / "users").write_text(_USERS)
    config = tmp_path / "registry.yml"
    settings: Object = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
    }
    if not is_open:
        settings["auth"] = {"htpasswd": {"realm": "r", "path": str(tmp_path / "users")}}
    config.write_text(json.dumps(settings))
    process = _started(REGISTRY, config)
    try:
        await until(lambda: _is_up(address))
        yield address
    finally:
        process.terminate()
        process.wait()


def _started(program: str, config: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False


def push(archive: Path, name: str) -> None:
    """Push the image of an archive to a registry."""
    options = ["-q", "--dest-tls-verify=false", "--dest-creds", f"me:{_WORD}"]
    command = ["skopeo", "copy", *options, f"oci-archive:{archive}", f"docker://{name}"]
    subprocess.run(command, check=True)


def login(registry: str, *, word: str = _WORD, name: str = "login") -> Object:
    """A Secret as created by ``kubectl create secret docker-registry``."""
    pair = base64.b64encode(f"me:{word}".encode()).decode()
    config = base64.b64encode(json.dumps({"auths": {registry: {"auth": pair}}}).encode()).decode()
    metadata = {"name": name, "namespace": "default"}
    return {"metadata": metadata, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": config}}
