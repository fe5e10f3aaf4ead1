"""The documentation site as built by `make docs`, in a browser at phone and desktop width."""

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.integration.browser import Browser, browser
from tests.tidy.sources import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# If set, pictures of some pages are saved in this folder.
_PICTURES = os.environ.get("SERVING_TEST_PICTURES")
_PICTURED = {"index", "tutorial", "settings", "runbooks", "volumes", "kubernetes-reference", "release"}
# Script errors, missing resources, and console errors and warnings.
_WATCH = """
window.problems_seen = [];
addEventListener('error', (item) => problems_seen.push(String(item.message || item.target.src || item.target.href)), true);
addEventListener('unhandledrejection', (item) => problems_seen.push(String(item.reason)));
for (const name of ['error', 'warn']) { console[name] = (...words) => problems_seen.push(words.join(' ')); }
"""
_WIDER = """
const width = document.documentElement.clientWidth;
return document.documentElement.scrollWidth <= width ? [] :
  [...document.querySelectorAll('main *')].filter((item) => item.getBoundingClientRect().right > width + 1)
    .slice(0, 3).map((item) => item.outerHTML.slice(0, 80));
"""
_IS_DARK = "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).every((item) => Number(item) < 128)"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of the site, and its URL."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    assert done.returncode == 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as new_browser:
        new_browser.run_before_load(_WATCH)
        yield new_browser


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1400, False)])
def test_no_page_overflows_the_window_or_has_script_errors(
    site: tuple[Path, str], window: Browser, width: int, dark: bool
) -> None:
    folder, url = site
    window.capture(dark=dark, width=width, height=900)
    result = {}
    for page in sorted(path.name for path in folder.glob("*.html") if path.name != "404.html"):
        window.open(f"{url}/{page}")
        assert window.run(_IS_DARK) == dark, page
        problems = [*window.run("return window.problems_seen"), *window.run(_WIDER)]
        if problems:
            result[page] = problems
        if _PICTURES and Path(page).stem in _PICTURED:
            window.picture(Path(_PICTURES) / f"{Path(page).stem}-{width}.png")
    assert result == {}


@pytest.mark.parametrize(("width", "from_folder"), [(390, False), (1400, False), (1400, True)])
def test_site_search_finds_a_page(site: tuple[Path, str], window: Browser, width: int, from_folder: bool) -> None:
    folder, url = site
    window.capture(dark=False, width=width, height=900)
    window.open(f"{folder.as_uri() if from_folder else url}/index.html")
    window.run("document.querySelector('label[for=__search]').click()")
    window.until("return document.activeElement.matches('[data-md-component=search-query]')")
    window.press(*"prjquota")
    window.until("return document.querySelector('.md-search-result a[href*=\"volumes.html\"]')?.checkVisibility()")
    if _PICTURES:
        window.picture(Path(_PICTURES) / f"search-{width}.png")
    assert window.run("return window.problems_seen") == []
