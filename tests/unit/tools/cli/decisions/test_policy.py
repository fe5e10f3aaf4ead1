"""``serving policy test``: the check of a policy's contract."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from serving.tools.cli.main import main

EXAMPLES = Path(__file__).parents[5] / "examples" / "policies"
HEAD = (
    "import random\nfrom serving.core.scaling.decision.policy import NEUTRAL\n"
    "from serving.core.scaling.kpa.merge import Proposal\n"
    "class Mine:\n    def observe(self, second): ...\n    def propose(self, view):\n"
)


@pytest.mark.parametrize("text", ["keep_alive.py:KeepAlive", "schedule.py:OfficeHours", "queue_length.py:QueueLength"])
def test_example_policies_pass_policy_test(text: str) -> None:
    done = CliRunner().invoke(main, ["policy", "test", f"{EXAMPLES}/{text}"])
    assert (done.exit_code, "1800 decisions" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return Proposal(decider='a', desired=random.randrange(9**9), reason='')", "equal inputs gave "),
        ("return Proposal(decider='a', desired=float('nan'), reason='')", "proposed nan pods"),
        ("return Proposal(decider='a', desired=view.in_flight / 2, reason='')", "not a whole number"),
        ("return view.algorithm_count / view.ready_count", "ZeroDivisionError"),
        ("return None", "not a Proposal or an Advice"),
    ],
)
def test_policy_that_violates_the_contract_is_reported(tmp_path: Path, body: str, problem: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{HEAD}        {body}\n")
    done = CliRunner().invoke(main, ["policy", "test", f"{file}:Mine"])
    assert (done.exit_code, problem in done.stderr) == (1, True), done.stderr


def test_policy_with_an_endless_loop_is_reported_as_too_slow(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{HEAD}        while view.present_scale > 5: pass\n        return NEUTRAL\n")
    done = CliRunner().invoke(main, ["policy", "test", f"{file}:Mine"])
    assert (done.exit_code, "longer than 0.1 s" in done.stderr) == (1, True), done.stderr


def test_missing_policy_file_is_rejected(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["policy", "test", f"{tmp_path}/none.py:Mine"])
    assert (done.exit_code, "is not readable" in done.stderr) == (2, True)
