"""An app that attacks its machine and responds with the error of each attempt, "" for a success.

It is a script of the standard library, run as a process pod. ``ATTACK`` names the state folder, another pod's id, its
process and its ports, and the addresses of the system.
"""

import contextlib
import ctypes
import functools
import http.client
import http.server
import json
import os
import resource
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

LIBC = ctypes.CDLL(None, use_errno=True)
STATS = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
# Signals and traces that do no harm if they succeed.
PTRACE_SEIZE, CLONE_NEWUSER, CLONE_NEWNS = 0x4206, 0x10000000, 0x20000
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - folders of the attempts


def called(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def memory_of(pid: int) -> object:
    with Path(f"/proc/{pid}/mem").open("rb"):
        return None


def bound(port: int, address: str = "127.0.0.1") -> object:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen()
        return None


def forked_without_end() -> object:
    """Fork until an error."""
    _, allowed = resource.getrlimit(resource.RLIMIT_NPROC)
    if not 0 < allowed <= 4096:
        return None
    # Stop below the limit, which counts only processes of this pod.
    resource.setrlimit(resource.RLIMIT_NPROC, (40, allowed))
    forked = []
    try:
        for _ in range(80):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            forked.append(pid)
    finally:
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
    return None


def connected(name: str) -> object:
    """Connect to an abstract socket of another process."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{name}")
        return None


def has(field: str, *refused: str) -> object:
    """Raise if a field of this process's status has one of these values."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    if value in refused:
        raise PermissionError(f"{field} {value}")
    return None


def filled(mebibytes: int) -> object:
    """Use memory, page by page."""
    return len([bytearray(os.urandom(4096) * 256) for _ in range(mebibytes)])


def asked(host: str, port: int, *lines: str) -> object:
    """Raise unless an HTTP request succeeds."""
    with socket.create_connection((host, port), 10) as sock, contextlib.closing(sock.makefile("rb")) as reply:
        sock.sendall("\r\n".join((*lines, "Host: x", "", "")).encode())
        status = reply.readline().decode().split(" ", 2)[1]
    if status[0] not in "12":
        raise PermissionError(f"status {status}")
    return None


def queried(port: int, path: str) -> object:
    """Query a daemon without a token and with a guessed one, by its address."""
    status = 0
    for lines in ((), ("Authorization: Bearer " + "g" * 43,), (f"Cookie: serving-view-{port}=" + "0" * 64,)):
        http_connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        http_connection.request("GET", path, headers=dict(line.split(": ") for line in lines))
        status = http_connection.getresponse().status
        if status not in (401, 403):
            return None
    raise PermissionError(f"status {status}")


def called_api(port: int) -> object:
    """List all Secrets at the API without a token and with a guessed one."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    status = 0
    for token in ("", "guess"):
        https_connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
        https_connection.request(
            "GET", "/api/v1/secrets", headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        status = https_connection.getresponse().status
        if status < 400:
            return None
    raise PermissionError(f"status {status}")


def attempts_at_system(ports: dict[str, int]) -> dict[str, Callable[[], object]]:
    """Attempts at the ports of a system."""
    queries = {
        "stats": ("/metrics", "/decisions", "/decisions?follow", "/policies"),
        "activator-metrics": ("/metrics", "/ejections/default", "/requests/default/hello", "/coldstarts/default"),
        "control-metrics": ("/metrics",),
        "dashboard": ("/", "/state", "/events", "/history", "/policy", "/?token=guess"),
    }
    result: dict[str, Callable[[], object]] = {
        f"query {path} of {name}": functools.partial(queried, ports[name], path)
        for name, paths in queries.items()
        for path in paths
    }
    return result | {
        "push stats as another": lambda: asked("127.0.0.1", ports["stats"], "GET /stats HTTP/1.1", *STATS),
        "push stats with a token of another": lambda: asked(
            "127.0.0.1", ports["stats"], "GET /stats HTTP/1.1", *STATS, "Authorization: Bearer " + "0" * 64
        ),
        "read Secrets from the API": lambda: called_api(ports["api"]),
        "act by the dashboard": lambda: asked(
            "127.0.0.1", ports["dashboard"], "POST /actions/delete HTTP/1.1", "Content-Length: 0"
        ),
    }


def attempts(container: dict[str, Any]) -> dict[str, Callable[[], object]]:
    if "ports" in container:
        return attempts_at_system(container["ports"])
    state, victim, pod = Path(container["state"]), int(container["pid"]), container["pod"]
    return {
        "read the token": (state / "token").read_bytes,
        "list the state folder's secrets": lambda: next(path for path in state.iterdir() if path.name != "pods"),
        "write the state folder": lambda: (state / "evil").write_text("x"),
        "read another pod's files": (state / "pods" / pod / "secret").read_text,
        **{f"read another pod's file in {text}": Path(text, "serving-victim").read_text for text in TEMPORARY},
        "leave by the parent of its folder": (Path("..") / pod / "secret").read_text,
        "see another pod's processes": Path(f"/proc/{victim}").stat,
        "connect to a socket of the system": lambda: connected(container["socket"]),
        "listen on any port": lambda: bound(int(container["free_port"])),
        **{
            f"have capabilities ({capability})": functools.partial(has, capability, "0" * 16)
            for capability in CAPABILITIES
        },
        "gain rights by a program": lambda: has("NoNewPrivs", "1"),
        "make any system call": lambda: has("Seccomp", "2"),
        "read another pod's environment": lambda: Path(f"/proc/{victim}/environ").read_bytes(),
        "read another pod's memory": lambda: memory_of(victim),
        "enter another pod's root": lambda: list(Path("/proc", str(victim), "root", ".").iterdir()),
        "trace another pod": lambda: called(LIBC.ptrace(PTRACE_SEIZE, victim, 0, 0)),
        "kill another pod": lambda: os.kill(victim, signal.SIGCONT),
        "kill the supervisor": lambda: os.kill(int(container["supervisor"]), signal.SIGCONT),
        "listen on the port of a pod to come": lambda: bound(int(container["pod_port"])),
        "listen where a queue-proxy may listen": lambda: bound(8012, "127.64.250.250"),
        "listen on another pod's port": lambda: bound(int(container["port"])),
        "listen beside a queue-proxy": lambda: bound(8012, container["address"]),
        "fork without end": forked_without_end,
        "fill the memory": lambda: filled(512),
        "drain another pod": lambda: asked(container["address"], 8022, "POST /drain HTTP/1.1", "Content-Length: 0"),
        "read another pod's metrics": lambda: asked(container["address"], 8022, "GET /metrics HTTP/1.1"),
        "open a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "read packets of all": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "become another user": lambda: os.setuid(1 if os.getuid() != 1 else 2),
        "make a user namespace": lambda: called(LIBC.unshare(CLONE_NEWUSER)),
        "mount": lambda: called(LIBC.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None)),
        "unmount what hides the state folder": lambda: called(LIBC.umount2(str(state).encode(), 2)),
        "change the kernel": lambda: Path("/proc/sys/kernel/core_pattern").write_text("|/tmp/evil"),
        "change a cgroup": lambda: next(Path("/sys/fs/cgroup").rglob("cgroup.procs")).write_text("0"),
        "load a module": lambda: called(LIBC.syscall(175, None, 0, b"") if os.uname().machine == "x86_64" else -1),
        "make a device": lambda: os.mknod("disk", 0o600 | 0o060000, os.makedev(8, 0)),
    }


def tried(attempt: Callable[[], object]) -> str:
    """The error of an attempt, "" if it succeeded.

    In a process of its own: one that succeeds must not change the next.
    """
    mine, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        message = ""
        try:
            attempt()
        except BaseException as error:  # noqa: BLE001 - the error is the result
            message = f"{type(error).__name__}: {error}"
        os.write(its, message.encode())
        os._exit(0)
    os.close(its)
    with os.fdopen(mine) as pipe:
        message = pipe.read()
    _, status = os.waitpid(pid, 0)
    return f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else message


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        document = json.loads(unquote(self.path.partition("?")[2]) or "{}")
        wanted = attempts(document) if document else {}
        result = {name: tried(value) for name, value in wanted.items() if name in document.get("only", wanted)}
        body = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), _Handler).serve_forever()
