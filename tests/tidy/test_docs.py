"""The pages agree with the files and with the code."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.core.model import errors
from serving.core.model.errors import ServingError
from tests.tidy.sources import ROOT, named, product_files

# A name of the tree with the name above it and the words behind it: {"NotFound": ("ClusterError", "404: there is no
# such object")}.
Tree = dict[str, tuple[str | None, str]]

# Generated pages are included.
README_WORDS_MAX, DOCS_WORDS_MAX = 900, 70_000
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)
# The files that each way drawn in docs/architecture.md may cross.
WAYS = {"a request": 9, "a stat": 7, "an annotation": 5, "a pod's start": 10, "a node's removal": 7}
_WAY = re.compile(r"^### The way of (.+)\n((?:(?!^#).*\n)*)", re.MULTILINE)
_STEP = re.compile(r"^\| (\d+)\. \S.* \| `([\w/]+\.py)` `([\w.]+)` \|$", re.MULTILINE)
_TREE_LINE = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z]\w*)(?: +(?P<words>.*\S))? *")


def broken_links(text: str, page: Path) -> Iterator[str]:
    """Relative links of a page without an existing file or heading."""
    prose = _INLINE_CODE.sub("", _FENCE.sub("", text))
    for match in _LINK.finditer(prose):
        link = match[1] or match[2]
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        file_name, _, anchor = link.partition("#")
        target = page.parent / file_name if file_name else page
        if not target.exists():
            yield link
        elif anchor and target.suffix == ".md":
            there = text if target == page else target.read_text()
            if anchor not in anchors(there):
                yield link


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings in GitHub's form."""
    results: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeats = sum(
            earlier_anchor == anchor or bool(re.fullmatch(re.escape(anchor) + r"-\d+", earlier_anchor))
            for earlier_anchor in results
        )
        results.add(f"{anchor}-{repeats}" if repeats else anchor)
    return results


def error_tree(text: str) -> Tree:
    """The tree that a text draws by indentation, from the line of ServingError on."""
    tree: Tree = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _TREE_LINE.fullmatch(line)
        if not above and not (match and match["name"] == "ServingError"):
            continue
        if not match or (above and len(match["indent"]) <= above[0][0]):
            break
        depth = len(match["indent"])
        while above and above[-1][0] >= depth:
            above.pop()
        tree[match["name"]] = (above[-1][1] if above else None, match["words"] or "")
        above.append((depth, match["name"]))
    return tree


def class_tree() -> dict[str, str | None]:
    """Every error of the project with the one above it, from the classes."""
    classes = [result for _, result in inspect.getmembers(errors, inspect.isclass) if issubclass(result, ServingError)]
    parents = {type_: [base for base in type_.__bases__ if issubclass(base, ServingError)] for type_ in classes}
    return {type_.__name__: (bases[0].__name__ if bases else None) for type_, bases in parents.items()}


def status_in(words: str) -> int | None:
    """The HTTP status in a text, if any."""
    match = re.search(r"\b([45]\d\d)\b", words)
    return int(match[1]) if match else None


def pages() -> list[Path]:
    return [path for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]) if path.is_file()]


def test_relative_links_have_existing_targets() -> None:
    results = [f"{named(page)}: {link}" for page in pages() for link in broken_links(page.read_text(), page)]
    assert results == [], "\n".join(results)


def drawn_errors() -> dict[str, tuple[str | None, str]]:
    return error_tree((ROOT / "docs" / "errors.md").read_text())


def test_documented_error_tree_equals_the_class_hierarchy() -> None:
    assert {name: parent for name, (parent, _) in drawn_errors().items()} == class_tree()


def test_documented_error_statuses_equal_those_of_the_classes() -> None:
    drawn = {name: status_in(words) for name, (_, words) in drawn_errors().items()}
    named_statuses = {name: status for name, status in drawn.items() if status}
    assert named_statuses == {name: getattr(errors, name).status for name in named_statuses}
    assert named_statuses


def missing_files(text: str) -> list[str]:
    """Python files named with their folder in a text, and not there."""
    named_files = re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", text)
    places = (ROOT, ROOT / "serving", ROOT / "tests")
    return [named_file for named_file in named_files if not any((place / named_file).is_file() for place in places)]


def test_pages_name_files_that_exist() -> None:
    result = {named(page): missing_files(page.read_text()) for page in pages() if page.name != "CHANGELOG.md"}
    assert {name: files for name, files in result.items() if files} == {}


def test_code_names_files_that_exist() -> None:
    results = {
        f"{named(path)}: {name}"
        for path in product_files()
        for name in re.findall(r"``([\w/-]+\.py)``", path.read_text())
        if not list(ROOT.glob(f"serving/**/{name}")) and not (ROOT / name).is_file()
    }
    assert results == set()


def ways(text: str) -> dict[str, list[tuple[str, str]]]:
    """The ways drawn on a page: file and function of each step; steps are numbered from 1."""
    result = {}
    for way, body in _WAY.findall(text):
        steps = _STEP.findall(body)
        assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1)), way
        result[way] = [(file, function) for _, file, function in steps]
    return result


def functions_in(source: str) -> set[str]:
    """Functions and methods of a module, with their class."""
    tops = ast.parse(source).body
    classes = [node for node in tops if isinstance(node, ast.ClassDef)]
    inside = [(f"{class_def.name}.", class_def.body) for class_def in classes]
    return {
        f"{prefix}{node.name}"
        for prefix, body in [("", tops), *inside]
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def faults_of_ways(text: str, bounds: dict[str, int]) -> list[str]:
    """Missing ways, ways through too many files, and steps without an existing function."""
    drawn = ways(text)
    missing = [f"{way}: not drawn" for way in bounds if not drawn.get(way)]
    long = [f"{way}: too many files" for way, steps in drawn.items() if len(dict(steps)) > bounds.get(way, 0)]
    absent = [
        f"{way}: no {function} in {file}"
        for way, steps in drawn.items()
        for file, function in steps
        if not (path := ROOT / "serving" / file).is_file() or function not in functions_in(path.read_text())
    ]
    return missing + long + absent


def test_documented_paths_name_existing_functions_in_few_files() -> None:
    assert faults_of_ways((ROOT / "docs" / "architecture.md").read_text(), WAYS) == []


def test_documented_request_owners_are_the_four_classes() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    owners = re.findall(r"^\| `(\w+)` \(`([\w/]+\.py)`\) \| (.+) \|$", text, re.MULTILINE)
    names = ["RequestRouter", "RevisionThrottler", "Admission", "EjectedPods"]
    assert [name for name, _, _ in owners] == names
    assert all(re.search(rf"class {name}\b", (ROOT / "serving" / file).read_text()) for name, file, _ in owners)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](there.md) [b](there.md#one-word) [c](#here-too) <https://x.y/z> [d](https://x.y)", []),
        ("[a](gone.md)", ["gone.md"]),
        ("[a](<gone.md>)", ["gone.md"]),
        ('[a](gone.md "title")', ["gone.md"]),
        ("![a](gone.svg)", ["gone.svg"]),
        ("[a][1]\n\n[1]: gone.md", ["gone.md"]),
        ("[a](there.md#no-such)", ["there.md#no-such"]),
        ("[a](#no-such)", ["#no-such"]),
        ("`[a](gone.md)`\n\n```\n[a](gone.md)\n```\n", []),
        ("[a](there.md#one-word-1)", []),
        ("[a](there.md#one-word-2)", ["there.md#one-word-2"]),
    ],
)
def test_rule_detects_a_broken_link(text: str, broken: list[str], tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One word\n\n## One (word)\n\n```\n# no such\n```\n")
    page = tmp_path / "page.md"
    page.write_text(f"{text}\n\n# `Here`, too!\n")
    assert list(broken_links(page.read_text(), page)) == broken


def test_code_of_the_calculations_page_runs() -> None:
    page = ROOT / "docs" / "calculations.md"
    blocks = re.findall(r"^```\n(from serving.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})  # noqa: S102 - our own page


def test_documented_data_path_responses_are_in_the_code() -> None:
    rows = re.findall(r"^\| [45]\d\d (`.*?`) \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    texts = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    sources = [*(ROOT / "serving/activator").rglob("*.py"), *(ROOT / "serving/queueproxy").rglob("*.py")]
    code = "".join(path.read_text() for path in [*sources, ROOT / "serving/net/proxy/forwarding/policy.py"])
    # Names and numbers vary: the words around them must be in the code.
    words = [part.strip(" .") for text in texts for part in re.split(r"NAME|\d+|\.\.\.", text)]
    assert len(texts) > 8
    assert [word for word in words if word.strip(": s") and word not in code] == []


def test_readme_and_docs_are_within_their_word_limits() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS_MAX
    words = sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md"))
    assert words <= DOCS_WORDS_MAX, "shorten a page: one place for each fact, links elsewhere"


def test_site_navigation_lists_every_page() -> None:
    listed = set(re.findall(r"^ {6}- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - listed == set(), "add the page to nav in mkdocs.yml"


def test_threat_model_names_existing_tests() -> None:
    named_there = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/threat-model.md").read_text()))
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    existing = {
        name for source in sources for name in re.findall(r"^(?:async )?def (test_\w+)\(", source, re.MULTILINE)
    }
    assert len(named_there) > 30
    assert named_there - existing == set()


def test_release_lists_each_kind_of_change_once() -> None:
    releases = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    for release in releases:
        kinds = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert sorted(kinds) == sorted(set(kinds)), release.splitlines()[0]
