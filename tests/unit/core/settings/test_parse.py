from serving.core.settings.parse import read_config_maps

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-autoscaler\ndata:\n"


def problems_of(text: str) -> list[str]:
    return [str(problem) for problem in read_config_maps(text, "f.yaml")[1]]


def test_entries_have_file_and_line() -> None:
    (config_map,), problems = read_config_maps(HEAD + '  stable-window: "60s"\n  min-scale: "1"\n', "f.yaml")
    assert problems == []
    assert config_map.name == "config-autoscaler"
    assert [(entry.key, entry.text, entry.where) for entry in config_map.entries] == [
        ("stable-window", "60s", "f.yaml:6"),
        ("min-scale", "1", "f.yaml:7"),
    ]


def test_each_document_is_one_config_map() -> None:
    second = HEAD.replace("autoscaler", "activator")
    config_maps, problems = read_config_maps(HEAD + "---\n" + second, "f.yaml")
    assert [config_map.name for config_map in config_maps] == ["config-autoscaler", "config-activator"]
    assert problems == []


def test_example_block_is_skipped() -> None:
    (config_map,), problems = read_config_maps(HEAD + "  _example: |\n    stable-window: nonsense\n", "f.yaml")
    assert (config_map.entries, problems) == ((), [])


def test_number_is_rejected_as_value() -> None:
    assert problems_of(HEAD + "  min-scale: 1\n") == [
        'f.yaml:6: min-scale: 1 is not text; expected text, as in min-scale: "1"'
    ]


def test_list_is_rejected_as_value() -> None:
    assert problems_of(HEAD + "  min-scale: [1]\n") == [
        "f.yaml:6: min-scale: a list or mapping is not text; expected text"
    ]


def test_duplicate_key_is_reported() -> None:
    assert problems_of(HEAD + '  min-scale: "1"\n  min-scale: "2"\n') == [
        "f.yaml:7: min-scale is written twice, first at f.yaml:6; expected each key once"
    ]


def test_invalid_yaml_is_reported_with_line() -> None:
    (problem,) = problems_of(HEAD + "  min-scale: '1\n")
    assert problem.startswith("f.yaml:7: not YAML: ")


def test_characters_forbidden_in_yaml_are_reported() -> None:
    (problem,) = problems_of("a: \x00")
    assert problem.startswith("f.yaml: not YAML: ")


def test_kind_other_than_config_map_is_reported() -> None:
    assert problems_of("kind: Service\nmetadata: {name: a}\n") == [
        "f.yaml:1: kind is Service; expected kind: ConfigMap with a metadata.name"
    ]


def test_text_without_mapping_is_reported() -> None:
    assert problems_of("just words") == ["f.yaml:1: kind is missing; expected kind: ConfigMap with a metadata.name"]


def test_config_map_without_name_is_reported() -> None:
    assert problems_of("kind: ConfigMap\n") == [
        "f.yaml:1: a ConfigMap without metadata.name; expected kind: ConfigMap with a metadata.name"
    ]


def test_data_without_mapping_is_reported() -> None:
    assert problems_of("kind: ConfigMap\nmetadata: {name: a}\ndata: [1]\n") == [
        "f.yaml:3: data is not a mapping; expected key: text"
    ]


def test_empty_data_is_valid() -> None:
    (config_map,), problems = read_config_maps("kind: ConfigMap\nmetadata: {name: a}\ndata:\n", "f.yaml")
    assert (config_map.entries, problems) == ((), [])
