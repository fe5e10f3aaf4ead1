"""The command line of all benchmarks: sizes, ``--quick``, ``--json``, and the exit code."""

import argparse
import json
from collections.abc import Mapping


def options_of(doc: str | None, *, quick: Mapping[str, object], **defaults: object) -> argparse.Namespace:
    """Parse the command line. Each of ``defaults`` is a flag with its type.

    A type as default is a flag without a default, a tuple takes several values, and ``names`` are words without a flag,
    of which none means all. ``--quick`` replaces defaults by those of ``quick``: the shortest run, which shows that all
    works and judges no goal.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the shortest run: shows that all works, judges no goal")
    parser.add_argument("--json", action="store_true", help="print JSON")
    names = tuple(map(str, defaults.pop("names", ())))  # type: ignore[call-overload] # a tuple of words
    if names:
        parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**{name: value for name, value in quick.items() if name != "names"})
    options = parser.parse_args()
    if names:
        unknown = set(options.names) - set(names)
        if unknown:
            parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(names)}")
        options.names = options.names or (options.quick and quick.get("names")) or names
    return options


def show(fields: Mapping[str, object], options: argparse.Namespace) -> None:
    """Print figures: a line each, or JSON."""
    print(json.dumps(fields) if options.json else "\n".join(f"{key}: {value}" for key, value in fields.items()))


def exit_code(options: argparse.Namespace, *, is_met: bool) -> int:
    """0 if the goal is met, or is not judged because the run was quick; else 1."""
    return 0 if is_met or options.quick else 1
