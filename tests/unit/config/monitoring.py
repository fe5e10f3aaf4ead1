"""Generate the rules and the dashboard of the monitoring component from ``config/monitoring``.

``python -m tests.unit.config.monitoring`` writes the files, and a test compares them.
"""

from pathlib import Path

from serving.tools.cli.client.tree import tree_folder

CONFIG = tree_folder()
_HEAD = """# Written from config/monitoring/{source}: make config.
apiVersion: {version}
kind: {kind}
metadata:
  name: {name}
  namespace: knative-serving
  labels: {{app.kubernetes.io/part-of: serving{label}}}
"""


def written() -> dict[Path, str]:
    """The content of each generated file."""
    folder = CONFIG / "components" / "monitoring"
    rules = (CONFIG / "monitoring" / "alerts.yaml").read_text(encoding="utf-8")
    board = (CONFIG / "monitoring" / "grafana-dashboard.json").read_text(encoding="utf-8")
    of_rules = {"source": "alerts.yaml", "version": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
    of_board = {"source": "grafana-dashboard.json", "version": "v1", "kind": "ConfigMap"}
    head_of_rules = _HEAD.format(**of_rules, name="serving", label="")
    head_of_board = _HEAD.format(**of_board, name="serving-grafana", label=', grafana_dashboard: "1"')
    _, _, groups = rules.partition("groups:\n")
    return {
        folder / "rules.yaml": f"{head_of_rules}spec:\n  groups:\n{_indented(groups, 2)}",
        folder / "board.yaml": f"{head_of_board}data:\n  serving.json: |\n{_indented(board, 4)}",
    }


def _indented(text: str, count: int) -> str:
    return "".join(f"{' ' * count}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


if __name__ == "__main__":
    for path, content in written().items():
        path.write_text(content, encoding="utf-8")
