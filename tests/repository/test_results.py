"""docs/results.md is what the result files say, and every result file carries its origin."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/make_results.py on a copy of what it reads and writes."""
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "tools" / "make_results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(module.RESULTS, tmp_path / "results")
    for name in ("TEMPLATE", "OUTPUT", "TUTORIAL"):
        monkeypatch.setattr(module, name, Path(shutil.copy(getattr(module, name), tmp_path)))
    copies = {language: Path(shutil.copy(path, tmp_path)) for language, path in module.READMES.items()}
    monkeypatch.setattr(module, "READMES", copies)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def change(path: Path, *keys: str, **values: object) -> None:
    """Set values, or with None remove them, in a part of a JSON file."""
    content = part = json.loads(path.read_text(encoding="utf-8"))
    for key in keys:
        part = part[key]
    part.update(values)
    for name, value in values.items():
        if value is None:
            del part[name]
    path.write_text(json.dumps(content), encoding="utf-8")


def test_check_passes_when_documents_and_result_files_agree(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


def test_check_fails_when_a_figure_changes_until_the_documents_are_made_again(tool: ModuleType) -> None:
    change(tool.RESULTS / "embed_throughput.json", "small int8 file bilm-tf", "elmokit", words_per_second=12345.0)
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert "12,345" in tool.OUTPUT.read_text(encoding="utf-8")
    assert all("12,345" in readme.read_text(encoding="utf-8") for readme in tool.READMES.values())


def test_figures_quoted_in_other_documents_are_checked(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    change(tool.RESULTS / "time_to_quality.json", "ratio", hours=2.5)
    assert tool.main([]) == 1  # written by hand, so that they are not made again
    assert capsys.readouterr().err == "docs/tutorials/pretrain.md should say '2.50 times as fast'\n"


def test_an_overload_that_refuses_nothing_is_none(tool: ModuleType) -> None:
    change(tool.RESULTS / "serve.json", "overload", "statuses", **{"429": None})
    with pytest.raises(ValueError, match="the overload refused no request"):
        tool.bars()


def test_a_target_that_is_missed_is_marked(tool: ModuleType) -> None:
    change(tool.RESULTS / "file_to_file.json", "small bfloat16", ratio=1.16)
    row = next(line for line in tool.bars().splitlines() if "From file to file" in line)
    assert "| 16 % | **no** |" in row


@pytest.mark.parametrize(
    ("name", "keys"), [("senses", ()), ("latency", ("small int8 bilm-tf",)), ("parity", ())], ids=str
)
@pytest.mark.parametrize("field", ["commit", "date", "command", "machine"])
def test_check_fails_when_a_figure_lacks_its_origin(
    tool: ModuleType, name: str, keys: tuple[str, ...], field: str
) -> None:
    assert tool.origin_problems() == []
    change(tool.RESULTS / f"{name}.json", *keys, **{field: None})
    (problem,) = tool.origin_problems()
    assert problem.startswith(": ".join([f"{name}.json", *keys]))


def test_check_fails_when_a_test_that_is_named_is_not_there(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with tool.TEMPLATE.open("a", encoding="utf-8") as template:
        template.write("\n`tests/nowhere/test_nothing.py`\n")
    assert tool.main([]) == 1
    assert "tests/nowhere/test_nothing.py" in capsys.readouterr().err


def test_check_fails_when_a_result_file_is_in_no_table(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copyfile(tool.RESULTS / "senses.json", tool.RESULTS / "orphan.json")
    assert tool.main(["--check"]) == 1
    assert "orphan.json is in no table" in capsys.readouterr().err


def test_intrinsic_measures_become_a_table(tool: ModuleType) -> None:
    part = {"by state": {"zeros": {"right": {"contextual": 55, "layer 0": 0, "layer 1": 50}}}}
    (tool.RESULTS / "intrinsic.json").write_text(json.dumps({"tiny": {"uses": part}}), encoding="utf-8")
    assert "| Nearest uses, of 60: contextual; layers | 55; 0 / 50 |" in tool.intrinsic()


def test_measures_in_other_libraries_become_tables(tool: ModuleType) -> None:
    (tool.RESULTS / "integrations.json").write_text("{}", encoding="utf-8")
    assert {tool.scikit_learn(), tool.sentence_transformers(), tool.spacy()} == {"Not measured yet."}
    run = {"dev": 50.0, "test": 40.0, "seconds": 1000, "max_steps": 5000}
    runs = {"1": run, "2": run | {"dev": 52.0, "test": 42.0, "seconds": 2000}}
    chosen = {"C": 1.0, "transformer_weights": {"elmo": 0.1}}
    report = {
        "scikit-learn": {"model": "tiny", "both": {"dev": 60.0, "test": 61.25, "parameters": chosen}},
        "sentence-transformers": {"scores": {"TF-IDF": {"MRPC": 80.0, "seconds": 1}, "mix": {"SICK-R": 45.0}}},
        "spaCy": {"ELMo": runs},
    }
    (tool.RESULTS / "integrations.json").write_text(json.dumps(report), encoding="utf-8")
    assert "| both | 60.0 | 61.2 | C 1.0, scale of ELMo 0.1 |" in tool.scikit_learn()
    assert "| TF-IDF | 80.0 |  |\n| mix |  | 45.0 |" in tool.sentence_transformers()
    assert "| ELMo | 2 | 5,000 | 51.0 ± 1.4 | 41.0 ± 1.4 | 1,500 |" in tool.spacy()
