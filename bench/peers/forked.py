"""Queue-proxies forked from a process that has loaded their code, as ``serving.home.processes.template`` does it.

    python bench/peers/forked.py COUNT APP_PORT

Prints their process ids in one line once all take connections, and ends them when its input ends.
"""

import os
import signal
import socket
import sys
import time

from serving.queueproxy.main import run
from serving.queueproxy.podspec import PodSpec


def main(count: int, app_port: int) -> None:
    """Fork, tell, wait, end."""
    children = []
    for index in range(count):
        bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ready, report = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(ready)
            spec = PodSpec(
                namespace="default",
                revision="hello-00001",
                pod=f"hello-{index}",
                app=("127.0.0.1", app_port),
                listen_fds={"requests": bound[0].detach(), "admin": bound[1].detach()},
                ready_fd=report,
            )
            os._exit(run(spec))
        os.close(report)
        os.read(ready, 100)
        children.append(pid)
        for sock in bound:
            sock.close()
    # The last one has just begun: what it still sets up belongs to what it takes.
    time.sleep(0.5)
    print(*children, flush=True)
    sys.stdin.read()
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
