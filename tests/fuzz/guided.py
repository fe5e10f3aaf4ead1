"""``make fuzz ENGINE=atheris``: fuzzes each target, led by the lines of ``serving`` that an input reaches.

    python -m tests.fuzz.guided [--seconds N] [--seed N] [TARGET...]

Each target gets a process of its own, and the same share of the time. Inputs that reach something new are kept in
``build/fuzz/TARGET``, from where the next run goes on. An input that fails is written to ``tests/fuzz/corpus/TARGET``,
as by ``tests.fuzz.run``; a target stops at its first.
"""

import argparse
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

atheris = importlib.import_module("atheris")
with atheris.instrument_imports(include=["serving"]):
    targets = importlib.import_module("tests.fuzz.targets")
    TOKENS = importlib.import_module("tests.fuzz.run").TOKENS

KEPT = Path("build/fuzz")
# An input is at most twice as long as the longest seed, or this: a longer seed would be cut, and be no valid file.
LENGTH_MIN_MAX = 4096
# libFuzzer takes no longer ones.
WORD_MAX = 64
# Of one input, in seconds: each takes some milliseconds.
INPUT_MAX_S = 20
_FAILURE = "failure-"


def words_of(seeds: Sequence[bytes], tokens: Iterable[bytes]) -> str:
    """A dictionary for libFuzzer: tokens that mean something, and the words of the seeds."""
    results = {word for seed in seeds for word in re.findall(rb"[\w$./:-]{3,%d}" % WORD_MAX, seed)}
    results |= {token for token in tokens if 0 < len(token) <= WORD_MAX}
    return "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in sorted(results))


def fuzz(name: str, *, seconds: int, seed: int) -> NoReturn:
    """Fuzz one target in this process, which ends with it."""
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    inputs = targets.inputs_of(name)
    for data in inputs:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    words = KEPT / f"{name}.dict"
    words.write_text(words_of(inputs, TOKENS))
    length = max(LENGTH_MIN_MAX, *(2 * len(data) for data in inputs))
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-timeout={INPUT_MAX_S}", f"-dict={words}"]
    # Changes at any place from the start: libFuzzer begins with few bytes, of which no file and no session consists.
    options += [f"-max_len={length}", "-len_control=0", f"-artifact_prefix={folder}/{_FAILURE}"]
    atheris.Setup([sys.argv[0], str(folder), *options], targets.TARGETS[name].run)
    atheris.Fuzz()
    sys.exit()


def fuzz_in_child(name: str, log: Path, *, seconds: int, seed: int) -> int:
    """Fuzz one target in a fork, as importing and instrumenting takes ten seconds; return its exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        with log.open("wb") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
            os.dup2(file.fileno(), sys.stdout.fileno())
        # It ends by SystemExit; libFuzzer writes the failed input at interpreter exit.
        fuzz(name, seconds=seconds, seed=seed)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def keep_failures(name: str, corpus: Path) -> int:
    """Move failing inputs to the corpus; return how many there are."""
    paths = list((KEPT / name).glob(f"{_FAILURE}*"))
    for path in paths:
        data = path.read_bytes()
        new_path = corpus / name / hashlib.sha256(data).hexdigest()[:16]
        new_path.parent.mkdir(parents=True, exist_ok=True)
        new_path.write_text(data.hex())
        path.unlink()
        sys.stdout.write(f"{name}: {new_path}\n")
    return len(paths)


def main() -> int:
    """Fuzz the named targets, or all of them, one after another."""
    parser = argparse.ArgumentParser(description="Fuzz what others give to serving, led by coverage.")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all targets")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    arguments = parser.parse_args()
    names = arguments.targets or list(targets.TARGETS)
    failed = 0
    KEPT.mkdir(parents=True, exist_ok=True)
    for name in names:
        log = KEPT / f"{name}.log"
        code = fuzz_in_child(name, log, seconds=max(1, round(arguments.seconds / len(names))), seed=arguments.seed)
        failures = keep_failures(name, targets.CORPUS)
        failed += failures or code != 0
        lines = log.read_text(errors="replace").splitlines()
        last = [line for line in lines if " cov: " in line][-1:]
        sys.stdout.write(f"{name:<20} {failures} failures  {' '.join(last)}\n")
        if code:
            sys.stdout.write("\n".join((*lines[-40:], "")))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
