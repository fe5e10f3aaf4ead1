from typing import Any

from rich.console import Console, Group

from serving.tools.cli.system.top import node_lines, node_table

GIB = 2**30


def node(name: str, score: float | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    size = {"cpu_millicores": 4000, "memory_bytes": 16 * GIB, "requested_millicores": 1800, "requested_bytes": 4 * GIB}
    used = {"cpu_millicores": 3700, "memory_bytes": GIB}
    return {"name": name, "ready": "True", "pod_count": 3, "used": used, "score": score, **size, **more}


def printed(*nodes: dict[str, Any], is_roomy: bool = True) -> list[list[str]]:
    console = Console(width=100 if is_roomy else 80, force_terminal=False)
    lines, _ = node_table(node_lines({"lines": nodes}), width=console.width)
    with console.capture() as caught:
        console.print(Group(*lines))
    assert max(map(len, caught.get().splitlines())) <= console.width
    return [line.split() for line in caught.get().splitlines()]


def test_best_scored_node_is_first_with_requested_and_used_resources() -> None:
    _, best, other = printed(node("a", 5.0), node("b", 7.5))
    assert best == ["b", "ready", "3", "1.8", "45%", "3.7", "92%", "4", "4", "25%", "1", "6%", "16", "7.5"]
    assert other[0] == "a"


def test_unknown_node_values_are_dashes_and_sizeless_nodes_are_skipped() -> None:
    nothing = {"cpu_millicores": 0, "memory_bytes": 0, "requested_millicores": 0, "requested_bytes": 0}
    bare = node("bare", used=None, ready="Unknown", **{**nothing, "requested_millicores": 500})
    _, line = printed(bare, node("none", **nothing), is_roomy=False)
    assert line == ["bare", "unknown", "3", "0.5", "-", "0", "-", "-"]


def test_state_without_nodes_has_no_node_lines() -> None:
    assert node_lines({}) == []
