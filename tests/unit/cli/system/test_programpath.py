from pathlib import Path

from serving.cli.system.programpath import path_lines


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    program = folder / "serving"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_a_program_on_the_path_needs_no_word(tmp_path: Path) -> None:
    program = made(tmp_path / "bin")
    assert path_lines(program, tmp_path / "bin" / "python", f"/nowhere:{tmp_path / 'bin'}") == []


def test_a_program_elsewhere_is_named_with_the_command_that_puts_it_on_the_path(tmp_path: Path) -> None:
    program = made(tmp_path / "a venv" / "bin")
    made(tmp_path / "other")
    (line,) = path_lines(program, tmp_path / "python", str(tmp_path / "other"))
    assert f"'{program}' is not on PATH: export PATH='{program.parent}':$PATH" in line


def test_a_module_that_was_run_finds_the_program_beside_its_interpreter(tmp_path: Path) -> None:
    program = made(tmp_path / "bin")
    (line,) = path_lines(Path("/src/serving/__main__.py"), program.with_name("python"), "")
    assert str(program) in line
    (line,) = path_lines(Path("/src/serving/__main__.py"), tmp_path / "python", "")
    assert line.endswith(f"{tmp_path / 'python'} -m serving ...")
