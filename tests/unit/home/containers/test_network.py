"""Activator sockets at the pods' gateway addresses, bound in a child's network namespace."""

import os
import shutil
import subprocess
import sys

import pytest

_PROGRAM = """
from serving.home.containers.network import Gateway, bind_gateway
gateway = Gateway(inner="10.138.1.2", public="10.139.1.2")
print(*sorted(bind_gateway(gateway, inner_port=8081, public_port=8080)))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare of util-linux")
def test_gateway_listens_on_configured_and_default_http_ports() -> None:
    command = ["unshare", "--net", sys.executable, "-c", _PROGRAM]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert names == ["inner-pods-443", "inner-pods-80", "inner-pods-8081", "public-pods-80", "public-pods-8080"]
