"""The dashboard of a running system in a browser, while a service wakes from zero."""

import json
import re
from pathlib import Path

import pytest

from serving.tools.dashboard.coldstarts import STEPS
from tests.e2e.cli_stage import SAMPLE, Stage
from tests.integration.browser import Browser, browser

pytestmark = pytest.mark.timeout(300)

# The newest row of a chart's table that has a number above 0 in a column.
_ROW = """
const head = [...document.querySelectorAll('figcaption')].find((caption) => caption.textContent.startsWith(arguments[0]));
const details = head.parentNode.querySelector('details');
details.open = true;
const rows = [...details.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent));
return rows.find((row) => parseFloat(row[arguments[1]]) > 0);
"""

# Delays the response with a revision's history until `release` is called, so that decisions arrive before it.
_SLOW_HISTORY = """
const real = window.fetch;
window.fetch = async (url, ...rest) => {
  const response = await real(url, ...rest);
  if (!String(url).startsWith("history") || window.released) return response;
  await new Promise((resolve) => { window.release = resolve; });
  setTimeout(() => { window.released = true; }, 200);
  return response;
};
"""


def test_dashboard_shows_a_service_waking_from_zero(serving: Stage, tmp_path: Path) -> None:
    stage = serving
    with browser() as window:
        stage("deploy", "lamp", str(tmp_path), "--command", SAMPLE, "--initial-scale", "0", "--concurrency", "10")
        window.capture(dark=False, width=1280, height=860)
        window.run_before_load(_SLOW_HISTORY)
        window.open(f"{stage('dashboard').stdout.strip()}#default/lamp-00001")
        window.until("return document.querySelector('#facts dd')?.textContent === 'At zero'")
        window.until("return Boolean(window.release)")
        act_by_token(stage, window)
        assert "lamp-00001 answered 200 OK" in window.run("return document.getElementById('done').textContent")
        window.until("return document.querySelector('#facts dd').textContent === 'Active'")
        window.until("return document.getElementById('decisions').textContent.includes('0 → 1')")
        window.run("window.release()")
        window.until("return Boolean(window.released)")
        assert window.run("return document.getElementById('decisions').textContent.includes('0 → 1')")
        marked = "return document.getElementById('decisions').querySelector('.change').textContent"
        # The reason depends on which report the autoscaler receives first.
        reasons = ("in flight over 0 ready pods", "woken by the activator")
        assert any(reason in window.run(marked) for reason in reasons)
        # The steps of the cold start, on the page and in the terminal.
        window.until("return document.querySelectorAll('#cold-bars .cold i').length >= 4")
        lines = stage("why", "lamp", "--cold").stdout.splitlines()
        assert lines[0].startswith("lamp-00001: median of 1 cold start, ")
        steps = [line[2:21].strip() for line in lines if line.startswith("  ")]
        assert {"pod is created", "app starts"} <= set(steps) <= set(STEPS)
        (entry,) = json.loads(stage("why", "lamp-00001", "--cold", "-o", "json").stdout)
        (start,) = entry["starts"]
        assert sum(start["steps"].values()) == pytest.approx(start["took_s"], abs=0.01)
        assert "`serving scale lamp --min 1`" in entry["median"]["advice"]
        assert "neither a service nor a revision" in stage("why", "nobody", "--cold", code=1).stderr
        for _ in range(20):
            stage("invoke", "lamp")
        responses = window.until(_ROW, "Responses per second", 1)
        assert [float(response) for response in responses[2:]] == [0, 0, 0], "the app responds only 200"
        pods = window.until(_ROW, "Pods", 2)
        assert pods[2] == "1"
        assert window.until(_ROW, "Latency", 3)[3].endswith(" ms")
        # The local node is listed; node scores are hidden for a single node.
        local = window.until(
            "const text = document.querySelector('#nodes li')?.textContent; return text?.includes('in use') && text"
        )
        assert re.search(r"local Ready1 podCPU0 requested, [\d.]+ in use, of [\d.]+ core", local), local
        assert not window.run("return document.querySelector('#nodes summary').checkVisibility()")
        assert any(line.startswith("local ") and "ready" in line for line in stage("top", "--once").stdout.splitlines())
        assert any(
            line.startswith("lamp-00001 ") and "active" in line for line in stage("top", "--once").stdout.splitlines()
        )


def act_by_token(stage: Stage, window: Browser) -> None:
    """Press Wake with the token that the CLI prints."""
    window.run(
        "document.getElementById('act').open = true; const field = document.getElementById('token');"
        "field.value = arguments[0]; field.dispatchEvent(new Event('input'));"
        "document.querySelector('#wake button').click()",
        stage("dashboard", "--token").stdout.strip(),
    )
    window.until("return document.getElementById('done').textContent.includes(' answered ')")
