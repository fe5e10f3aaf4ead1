"""``make demo``: a service from zero to many pods and back with real requests, and what happens when parts are killed.

Starts the whole system on ports of its own, with state in a folder of its own, and prints a timeline. Exit 0 only if all
holds; the last line says what held.
"""

import asyncio
import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from serving.samples import hello

__all__ = ["Demo", "main"]

HOST = b"hello.default.localhost"
WORKERS = 60
LOAD_S = 8.0
ZERO_WITHIN_S = 60.0


class Demo:
    """A running system with the sample service, and what was seen of it."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.began_s = time.monotonic()
        self.held: list[str] = []
        ports = [f"--{name}-port=0" for name in ("public", "inner", "api", "stats")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "serving", "up", "--state", state, *ports], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        match = re.search(r"localhost:(\d+)", self.process.stdout.readline())
        assert match, "serving up says where services answer"
        self.port = int(match[1])

    def say(self, text: str) -> None:
        """A line of the timeline."""
        print(f"{time.monotonic() - self.began_s:6.1f} s  {text}", flush=True)

    def check(self, what: str, *, holds: bool) -> None:
        """Note that something holds; end at once if it does not."""
        self.say(f"{'holds' if holds else 'FAILED'}: {what}")
        if not holds:
            raise SystemExit(1)
        self.held.append(what)

    def serving(self, *arguments: str) -> str:
        """Output of a command of the CLI."""
        command = [sys.executable, "-m", "serving", *arguments, "--state", self.state]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def revision(self) -> tuple[int, str]:
        """Pods that the newest revision has, and its serving state."""
        config = json.loads((Path(self.state) / "kubeconfig").read_text())
        server = config["clusters"][0]["cluster"]["server"]
        listing = subprocess.run(
            ["curl", "-sf", f"{server}/apis/serving.knative.dev/v1/namespaces/default/revisions"],  # noqa: S607
            check=True,
            capture_output=True,
        ).stdout
        newest = json.loads(listing)["items"][-1]
        return newest.get("status", {}).get("actualReplicas") or 0, newest["spec"]["servingState"]

    async def get(self, path: str = "/") -> tuple[str, str]:
        """Status line and body of one request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path.encode(), HOST))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        return head.split(b"\r\n")[0].decode(), body.decode()

    async def load(self, duration_s: float) -> tuple[collections.Counter[str], int]:
        """Answers by status, and the most pods seen meanwhile."""
        seen: collections.Counter[str] = collections.Counter()
        until_s = time.monotonic() + duration_s

        async def work() -> None:
            while time.monotonic() < until_s:
                try:
                    status, _ = await self.get("/sleep/0.3")
                except OSError as error:
                    status = type(error).__name__
                seen[status or "no answer"] += 1

        workers = asyncio.gather(*(work() for _ in range(WORKERS)))
        most = 0
        while time.monotonic() < until_s:
            await asyncio.sleep(1)
            pods, _ = await asyncio.to_thread(self.revision)
            most = max(most, pods)
            self.say(f"{sum(seen.values()):6} answered, {pods:3} pods {'#' * pods}")
        await workers
        return seen, most

    async def zero(self) -> bool:
        """Whether the service comes to zero in time."""
        until_s = time.monotonic() + ZERO_WITHIN_S
        while time.monotonic() < until_s:
            pods, state = await asyncio.to_thread(self.revision)
            if (pods, state) == (0, "Reserve"):
                return True
            await asyncio.sleep(1)
        return False

    def kill(self, module: str) -> None:
        """SIGKILL to one daemon of this system."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if parent == self.process.pid and module in command:
                os.kill(int(entry.name), signal.SIGKILL)
                self.say(f"killed {module}")


async def story(demo: Demo) -> None:
    """What is shown, in order."""
    folder, app = str(Path(hello.__file__).parent), hello.__file__
    arguments = ["--command", f"{sys.executable} {app}", "--concurrency", "10"]
    demo.serving("deploy", "hello", folder, *arguments, "--annotate", "autoscaling.knative.dev/window=6s")
    demo.say("deployed hello")
    status, body = await demo.get()
    demo.check(f"a request is answered: {body.strip()}", holds=status == "HTTP/1.1 200 OK")
    seen, most = await demo.load(LOAD_S)
    demo.check(f"under {WORKERS} clients it grew to {most} pods", holds=most > 1)
    demo.check(f"none of {sum(seen.values())} requests failed", holds=set(seen) == {"HTTP/1.1 200 OK"})
    demo.check("silence brings it back to zero", holds=await demo.zero())
    began_s = time.monotonic()
    status, body = await demo.get()
    waited_ms = (time.monotonic() - began_s) * 1000
    demo.check(f"a request from zero is answered within {waited_ms:.0f} ms", holds=status == "HTTP/1.1 200 OK")
    demo.kill("serving.autoscaler.main")
    status, _ = await demo.get()
    demo.check("with the autoscaler killed a request is answered", holds=status == "HTTP/1.1 200 OK")
    demo.kill("serving.activator.main")
    status, _ = await demo.get()
    demo.check("a request right after the activator was killed is answered", holds=status == "HTTP/1.1 200 OK")


def main() -> int:
    """Run the story and end the system."""
    with tempfile.TemporaryDirectory() as state:
        demo = Demo(state)
        try:
            asyncio.run(story(demo))
        finally:
            demo.process.send_signal(signal.SIGTERM)
            demo.process.wait()
        print("held: " + "; ".join(demo.held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
