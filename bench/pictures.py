"""Makes the dashboard's pictures of the docs, and the recording of the first two minutes, from a system that runs.

    python bench/pictures.py [--folder docs/img] [--load-s 120] [--quick]

Types the commands of a new user into a system in a new folder, and writes what they print, with the times, to
``first-two-minutes.cast`` (``asciinema play`` shows it). Then six services get requests for ``--load-s`` seconds, one
of them fails, and a headless Chromium takes the pictures.
"""

import asyncio
import itertools
import json
import random
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.parts.load import send_request
from bench.parts.program import options_of
from bench.parts.system import System, running_system
from tests.integration.browser import Browser, browser

HELLO = Path(__file__).parents[1] / "serving" / "tools" / "samples" / "hello.py"
# Clients of each service; one that is asked now and then goes to zero and back.
CLIENTS = {"shop": 12, "search": 6, "images": 3, "mail": 1, "report": 0}
FAILING = "import os\nraise RuntimeError('no such key: DATABASE_URL')\n"
APP = """import http.server, os

class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from shout\\n")

http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), App).serve_forever()
"""
COMMANDS = (
    "cat shout/app.py",
    "serving deploy ./shout",
    "serving invoke shout",
    "serving get",
    "serving why shout",
    "serving update shout -e GREETING=hi --no-traffic --tag next",
    "serving traffic shout",
    "serving traffic shout --to-latest",
    "serving requests shout",
    "serving logs --tail 2",
    "serving depoly shout",
    "serving delete shout",
)
# The time after the output of a command for which it stays to be read, and that of a key.
READ_S, KEY_S = 6.0, 0.04


class Recording:
    """The lines of a file of asciinema, version 2."""

    def __init__(self) -> None:
        self.at_s = 0.0
        header = {"version": 2, "width": 120, "height": 40, "title": "serving: the first two minutes"}
        self.lines = [json.dumps(header)]

    def add(self, text: str, *, after_s: float) -> None:
        """Append an output."""
        self.at_s += after_s
        self.lines.append(json.dumps([round(self.at_s, 2), "o", text.replace("\n", "\r\n")]))

    def run(self, system: System, command: str, folder: Path) -> None:
        """Type a command, and append what it prints as it comes."""
        self.add("$ ", after_s=0.0)
        for key in command:
            self.add(key, after_s=KEY_S)
        self.add("\n", after_s=0.2)
        words = shlex.split(command)
        if words[0] == "serving":
            words = [sys.executable, "-m", "serving", *words[1:2], "--state", str(system.state), *words[2:]]
        begun_s = time.monotonic()
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout
        for line in process.stdout:
            now_s = time.monotonic()
            self.add(line.replace(str(folder), "~").replace("python -m serving", "serving"), after_s=now_s - begun_s)
            begun_s = now_s
        process.wait()
        self.add("\n", after_s=READ_S)


def record(system: System, folder: Path, path: Path, commands: Sequence[str]) -> None:
    """Write the recording of commands."""
    (folder / "shout").mkdir()
    (folder / "shout" / "app.py").write_text(APP)
    recording = Recording()
    for command in commands:
        recording.run(system, command, folder)
    path.write_text("\n".join(recording.lines) + "\n")


def deploy(system: System, folder: Path) -> None:
    """Deploy the services of the pictures; the last one fails."""
    command = f"{shlex.quote(sys.executable)} {HELLO}"
    for name in CLIENTS:
        limits = ["--memory", "128Mi", "--concurrency", "4", "--window", "20s"]
        system.serving("deploy", name, str(HELLO.parent), "--command", command, *limits)
    (folder / "broken").mkdir()
    (folder / "broken" / "app.py").write_text(FAILING)
    place = [str(folder / "broken"), "--command", f"{shlex.quote(sys.executable)} app.py", "--no-wait"]
    words = [sys.executable, "-m", "serving", "deploy", "checkout", *place]
    subprocess.run([*words, "--state", str(system.state)], check=True, stdout=subprocess.DEVNULL)


async def load(system: System, has_ended: threading.Event) -> None:
    """Send requests to all services until the end; each client pauses differently."""
    chance = random.Random(1)

    async def work(name: str, number: int) -> None:
        for turn in itertools.count():
            if has_ended.is_set():
                return
            # Waves, so that there is something to scale.
            wave = 1.0 if (turn // 100 + number) % 3 else 0.3
            await send_request(system.port, f"{name}.default.localhost")
            await asyncio.sleep(chance.uniform(0.05, 0.3) / wave)

    async with asyncio.TaskGroup() as group:
        for name, count in CLIENTS.items():
            for number in range(count):
                group.create_task(work(name, number))


def capture_views(window: Browser, link: str, folder: Path) -> None:
    """Take the pictures of the page."""
    views = {
        "overview": ("", 1280, 400, False),
        "light": ("?last=#default/shop-00001", 1280, 1150, False),
        "dark": ("?tab=settings#default/shop-00001", 1280, 640, True),
        "light-narrow": ("", 390, 720, False),
        "dark-narrow": ("#default/shop-00001", 390, 844, True),
    }
    window.open(link)
    base = link.partition("?")[0]
    for name, (address, width, height, is_dark) in views.items():
        window.capture(dark=is_dark, width=width, height=height)
        window.open(f"{base}{address}")
        window.until("return document.getElementById('link').textContent === 'live'")
        # Decisions and samples come with the next ticks.
        time.sleep(5)
        window.run("const act = document.getElementById('act'); if (act) act.open = true; scrollTo(0, 0)")
        window.picture(folder / f"dashboard-{name}.png")


def main() -> int:
    """Run as a program."""
    options = options_of(
        __doc__, folder=str(Path(__file__).parents[1] / "docs" / "img"), load_s=120.0, quick={"load_s": 3.0}
    )
    with tempfile.TemporaryDirectory() as text, running_system(parent=Path(text)) as system:
        folder = Path(text) if options.quick else Path(options.folder)
        record(system, Path(text), folder / "first-two-minutes.cast", COMMANDS[:3] if options.quick else COMMANDS)
        deploy(system, Path(text))
        has_ended = threading.Event()
        clients = threading.Thread(target=lambda: asyncio.run(load(system, has_ended)))
        clients.start()
        try:
            time.sleep(options.load_s)
            with browser() as window:
                capture_views(window, system.serving("dashboard").strip(), folder)
        finally:
            has_ended.set()
            clients.join()
        print("\n".join(sorted(f"{path.name}: {path.stat().st_size} bytes" for path in folder.glob("*.*"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
