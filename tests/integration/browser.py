"""A headless Chromium by the WebDriver protocol: a process and a few calls over HTTP, without a library."""

import atexit
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

_WAIT_S = 60.0
_POLL_S = 0.1
# Other tests create network interfaces, which makes Chromium fail loading pages: ERR_NETWORK_CHANGED.
_RELOAD, _RELOAD_S = "if (location.protocol === 'chrome-error:') location.reload()", 2.0
_PAGE = "return `${location.href} ${document.readyState} ${document.title}: ${document.body.innerText.slice(0, 400)}`"
_STARTS_MAX = 5
# Virtual key codes, and the text of keys.
_KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    " ": (32, " "),
    **{name: (37 + place, "") for place, name in enumerate(("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"))},
    "Escape": (27, ""),
}


class Browser:
    """A browser window."""

    def __init__(self, url: str, session: str) -> None:
        self._url = f"{url}/session/{session}"

    def start_anew(self) -> None:
        """Replace all windows by an empty one, and clear cookies and storage."""
        before = self.handles()
        fresh = _call("POST", f"{self._url}/window/new", {"type": "tab"})["handle"]
        for handle in before:
            self.switch_to(handle)
            _call("DELETE", f"{self._url}/window")
        self.switch_to(fresh)
        self._cdp("Network.clearBrowserCookies")
        self._cdp("Storage.clearDataForOrigin", origin="*", storageTypes="all")

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        _call("POST", f"{self._url}/url", {"url": url})

    def open_beside(self, url: str) -> None:
        """Open a page in a new window, to which later calls apply."""
        self.switch_to(_call("POST", f"{self._url}/window/new", {"type": "window"})["handle"])
        self.open(url)

    def focus(self) -> None:
        """Emulate a focused, visible page. A background tab has no focus otherwise."""
        self._cdp("Emulation.setFocusEmulationEnabled", enabled=True)

    def minimize(self) -> None:
        """Hide the window."""
        _call("POST", f"{self._url}/window/minimize", {})

    def restore(self) -> None:
        """Show a hidden window again."""
        _call("POST", f"{self._url}/window/rect", {"width": 1000})

    def handles(self) -> list[str]:
        """The windows."""
        return [str(handle) for handle in _call("GET", f"{self._url}/window/handles")]

    def switch_to(self, handle: str) -> None:
        """Select the window to which later calls apply."""
        _call("POST", f"{self._url}/window", {"handle": handle})

    def run_before_load(self, script: str) -> None:
        """Run a script in each page that is opened, before the page's own."""
        self._cdp("Page.addScriptToEvaluateOnNewDocument", source=script)

    def block(self, *patterns: str) -> None:
        """Fail requests to URLs with only these patterns from now on."""
        self._cdp("Network.enable")
        self._cdp("Network.setBlockedURLs", urls=patterns)

    def send(self, headers: dict[str, str]) -> None:
        """Send these headers with each request from now on, as a proxy in front of the page does."""
        self._cdp("Network.enable")
        self._cdp("Network.setExtraHTTPHeaders", headers=headers)

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON of the page
        """The result of a script; ``arguments[0]`` is its first argument."""
        return _call("POST", f"{self._url}/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str) -> Any:  # noqa: ANN401 - as above
        """The result that a script passes to its last argument."""
        return _call("POST", f"{self._url}/execute/async", {"script": script, "args": []})

    def until(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - as above
        """Run a script until its result is true; exceptions of the script, such as for missing elements, are retried."""
        deadline_s, reload_s = time.monotonic() + _WAIT_S, time.monotonic()
        while not (attempt := self._attempt(script, arguments)):
            if time.monotonic() >= deadline_s:
                raise AssertionError(f"never true: {script}; the page: {self.run(_PAGE)}")
            time.sleep(_POLL_S)
            if time.monotonic() - reload_s >= _RELOAD_S:
                reload_s = time.monotonic()
                self._attempt(_RELOAD, ())
        return attempt

    def _attempt(self, script: str, arguments: tuple[object, ...]) -> Any:  # noqa: ANN401 - as above
        try:
            return self.run(script, *arguments)
        except urllib.error.HTTPError as error:
            # The driver's response to an exception of the script.
            if error.code != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return None

    def press(self, *keys: str) -> None:
        """Press and release keys one after another, as a keyboard does: "Enter", "Tab", "Shift+Tab", " ", "a"."""
        for key in keys:
            *results, name = key.split("+")
            code, text = _KEYS.get(name, (ord(name[0].upper()), name))
            parameters = {
                "key": name,
                "code": name,
                "windowsVirtualKeyCode": code,
                "modifiers": 8 * ("Shift" in results),
            }
            self._cdp("Input.dispatchKeyEvent", type="keyDown", **parameters, **({"text": text} if text else {}))
            self._cdp("Input.dispatchKeyEvent", type="keyUp", **parameters)

    def drag(self, selector: str, begin: float, end: float) -> None:
        """Drag the mouse across an element, between parts of its width."""
        box = "const box = [...document.querySelectorAll(arguments[0])].find((one) => one.checkVisibility())"
        look = f"{box}; box.scrollIntoView({{ block: 'center' }}); const found = box.getBoundingClientRect();"
        remaining, top, width, height = self.run(
            f"{look} return [found.left, found.top, found.width, found.height]", selector
        )
        where = [{"x": remaining + part * width, "y": top + height / 2} for part in (begin, end)]
        self._cdp("Input.dispatchMouseEvent", type="mouseMoved", **where[0])
        self._cdp("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **where[0])
        self._cdp("Input.dispatchMouseEvent", type="mouseMoved", button="left", **where[1])
        self._cdp("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **where[1])

    def capture(self, *, dark: bool, width: int, height: int) -> None:
        """Set the theme of the system and the size of the window."""
        self._cdp("Emulation.setEmulatedMedia", features=[_theme(dark=dark)])
        self._cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def picture(self, path: Path) -> None:
        """The content of the window, as a PNG."""
        path.write_bytes(base64.b64decode(_call("GET", f"{self._url}/screenshot")))

    def violations(self) -> list[str]:
        """The violations that axe-core finds on the page; empty unless SERVING_TEST_AXE is the path of its file."""
        axe = os.environ.get("SERVING_TEST_AXE")
        if not axe:
            return []
        # Wait for the end of colour transitions.
        self.until("return document.getAnimations().every((animation) => animation.playState !== 'running')")
        self.run(Path(axe).read_text())
        reported = "(rule) => `${rule.id}: ${rule.nodes.map((node) => `${node.target} ${node.failureSummary}`)}`"
        result = self.run_async(f"axe.run().then((results) => arguments[0](results.violations.map({reported})))")
        return [str(violation) for violation in result]

    def busy_s(self) -> float:
        """Seconds of work of the page's main thread since the first call."""
        self._cdp("Performance.enable")
        entry = {metric["name"]: metric["value"] for metric in self._cdp("Performance.getMetrics")["metrics"]}
        return float(entry["TaskDuration"])

    def heap_size(self) -> int:
        """The heap size of the page's scripts in bytes, after a garbage collection."""
        self._cdp("HeapProfiler.collectGarbage")
        return int(self._cdp("Runtime.getHeapUsage")["usedSize"])

    def _cdp(self, command: str, **parameters: object) -> Any:  # noqa: ANN401 - as above
        return _call("POST", f"{self._url}/goog/cdp/execute", {"cmd": command, "params": parameters})


# The Chromium of this process: its driver, the driver's URL, and the session. None at first.
_shared: list[tuple[subprocess.Popen[str], str, str]] = []


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A new window; skips the test without Chromium.

    All tests of this process share one Chromium. What one of them sets ends with its windows, cookies and storage.
    """
    if not _shared:
        _shared.append(_with_session())
    _, url, session = _shared[0]
    window = Browser(url, session)
    try:
        yield window
        window.start_anew()
    except BaseException:
        _close()
        raise


def _close() -> None:
    """End the Chromium of this process, if there is one."""
    while _shared:
        process, url, session = _shared.pop()
        with contextlib.suppress(OSError):
            _call("DELETE", f"{url}/session/{session}")
        process.terminate()
        process.communicate(timeout=60)


def _with_session() -> tuple[subprocess.Popen[str], str, str]:
    """A chromedriver, its URL, and its session with a Chromium."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("chromium-browser")
    if driver is None or chromium is None:
        pytest.skip("chromium and chromedriver are not on PATH: make system-packages")
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    options = {"binary": chromium, "args": arguments}
    capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
    process, port = _started(driver)
    atexit.register(_close)
    url = f"http://127.0.0.1:{port}"
    return process, url, _call("POST", f"{url}/session", {"capabilities": capabilities})["sessionId"]


def _started(driver: str) -> tuple[subprocess.Popen[str], int]:
    """A chromedriver and its port.

    It ends if the port that it got for IPv4 is taken for IPv6, and is then started again.
    """
    for _ in range(_STARTS_MAX):
        process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.search(r"started successfully on port (\d+)", line):
                return process, int(match[1])
        process.communicate(timeout=60)
    raise AssertionError(f"chromedriver did not start {_STARTS_MAX} times")


def _call(method: str, url: str, body: object = None) -> Any:  # noqa: ANN401 - JSON of the driver
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"}, method=method)  # noqa: S310 - our own driver
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - as above
        return json.load(response)["value"]


def _theme(*, dark: bool) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
