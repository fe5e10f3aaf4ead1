from click.testing import CliRunner, Result

from serving.cli.main import main


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_a_day_in_the_life_is_told_with_reasons() -> None:
    done = simulate("--load", "5:2 20:0", "--until", "120")
    assert done.exit_code == 0
    assert "pods 0 -> 1" in done.stdout
    assert "pods 1 -> 0" in done.stdout
    assert "0 refused" in done.stdout


def test_annotations_are_those_of_a_revision() -> None:
    done = simulate("--load", "5:200 20:0", "--until", "40", "--annotate", "max-scale=2")
    assert "pods 0 -> 3" not in done.stdout
    assert done.exit_code == 0


def test_what_is_wrong_is_told() -> None:
    assert simulate("--load", "5").exit_code == 2
    done = simulate("--annotate", "max-scale=many", "--annotate", "min-scal=1")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 2)
