import json
from pathlib import Path

import msgspec
from click.testing import CliRunner

from serving.tools.cli.main import main
from tests.unit.core.scaling.scaler.test_replay import a_day


def recording(path: Path) -> str:
    file = path / "decisions.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in a_day()))
    return str(file)


def test_replay_of_unchanged_records_reports_no_difference(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["replay", recording(tmp_path)])
    assert (done.exit_code, done.output.splitlines()[-1].endswith("about 1 revisions recomputed: 0 differ")) == (
        0,
        True,
    )


def test_replay_reports_differing_fields_of_an_altered_record(tmp_path: Path) -> None:
    file = Path(recording(tmp_path))
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:3]) + "\n" + lines[3].replace('"target_value":7.0', '"target_value":70.0') + "\n")
    done = CliRunner().invoke(main, ["replay", str(file)])
    assert done.exit_code == 1
    assert "decided.detail.desired_stable_count:" in done.output
    assert done.output.splitlines()[-1] == "4 decisions about 1 revisions recomputed: 1 differ"


def test_replay_with_another_setting_shows_the_changed_decisions(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["replay", recording(tmp_path), "--set", "max-scale=8"])
    assert done.exit_code == 0
    assert "  as it was 31 → 43: panic; " in done.output
    assert "limited by max-scale 8\n" in done.output


def test_replay_rejects_an_unknown_or_incomplete_setting(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["replay", recording(tmp_path), "--set", "max-scal=8"])
    assert (done.exit_code, "one of activation_scale" in done.output) == (1, True)
    done = CliRunner().invoke(main, ["replay", recording(tmp_path), "--set", "max-scale"])
    assert (done.exit_code, "expected KEY=VALUE" in done.output) == (1, True)


def test_replay_reports_an_invalid_line_by_file_and_number(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n")
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "x")])
    assert (done.exit_code, f"{tmp_path / 'x'}:1:" in done.output) == (1, True)


def test_replay_json_output_lists_differences(tmp_path: Path) -> None:
    document = json.loads(CliRunner().invoke(main, ["replay", recording(tmp_path), "-o", "json"]).output)
    assert (document["revisions"], document["different"]) == (1, [])
    done = CliRunner().invoke(main, ["replay", recording(tmp_path), "--set", "max-scale=8", "-o", "json"])
    other = json.loads(done.output)
    assert other["decisions"] == document["decisions"]
    assert any("limited by max-scale 8" in entry["after"] for entry in other["different"])
