"""tools/make_results.py writes what the result files say, and finds documents that say something else."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_documents_follow_the_result_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "tools" / "make_results.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    shutil.copytree(tool.RESULTS, tmp_path / "results")
    for name in tool.DOCUMENTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results")
    check, make = ["make_results.py", "--check"], ["make_results.py"]
    monkeypatch.setattr(sys, "argv", check)
    assert tool.main() == 0
    changed = tmp_path / "results" / "embed_throughput.json"
    content = json.loads(changed.read_text(encoding="utf-8"))
    content["small float32 file bilm-tf"]["elmokit"]["words_per_second"] = 12345.0
    changed.write_text(json.dumps(content), encoding="utf-8")
    assert tool.main() == 1
    monkeypatch.setattr(sys, "argv", make)
    assert tool.main() == 0
    for name in ("docs/results.md", "README.md", "README.zh-CN.md"):
        assert "12,345" in (tmp_path / name).read_text(encoding="utf-8")
    shutil.copy(changed, tmp_path / "results" / "orphan.json")
    assert tool.main() == 1  # which nothing shows
