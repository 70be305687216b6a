"""The comparison of the encoders in benchmarks/quality, on tiny models: its bookkeeping, and its stages."""

import importlib.util
import itertools
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from toy_encoders import ENCODERS, write_config
from toy_run import write_text

from elmokit.runtime import pytorch_threads

ROOT = Path(__file__).parents[2]
QUALITY = ROOT / "benchmarks" / "quality"
TRAINING = {
    "recipe": "modern", "batch_size": 4, "unroll_steps": 5, "num_samples": 6, "dropout": 0.0, "dtype": "float32",
    "vocab_size": 99, "learning_rate": dict.fromkeys(ENCODERS, 0.01),
}  # fmt: skip

# The vocabulary of the toy text has a handful of words.
pytestmark = pytest.mark.filterwarnings("ignore:.* of the words are not in the model's vocabulary")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """benchmarks/quality/encoders.py with tiny configurations."""
    monkeypatch.setattr(sys, "path", [str(QUALITY), str(ROOT / "benchmarks"), *sys.path])
    spec = importlib.util.spec_from_file_location("encoders_benchmark", QUALITY / "encoders.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    for encoder in ENCODERS:
        write_config(encoder, recipes / f"{encoder}.json")
    (recipes / "training.json").write_text(json.dumps(TRAINING))
    monkeypatch.setattr(module, "RECIPES", recipes)
    return module


def write_log(directory: Path, *records: tuple[int, float]) -> None:
    directory.mkdir(parents=True)
    lines = [{"event": "start", "step": 0}, *({"event": "train", "step": s, "processor_seconds": t}
             for s, t in records)]  # fmt: skip
    (directory / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_time_of_training_counts_a_repeated_step_once(script: ModuleType, tmp_path: Path) -> None:
    write_log(tmp_path / "run", (10, 2.0), (20, 1.0), (30, 4.0), (30, 2.0), (40, 1.0))
    assert script.seconds_so_far(tmp_path / "run") == 2 + 1 + 2 + 1
    assert script.seconds_so_far(tmp_path / "none") == 0


def write_data_sets(directory: Path) -> Path:
    """The data sets of the stages probe, senses and ner, from the examples and a few sentences."""
    examples = ROOT / "examples" / "data"
    (directory / "ud_english_ewt").mkdir(parents=True)
    for name, source in (("train.reassembled", "train"), ("dev", "dev"), ("test", "test")):
        target = directory / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu"
        target.write_bytes((examples / f"{source}.conllu").read_bytes())
    for word in ("bank", "bank-again"):  # of several words there is a mean
        shutil.copytree(examples / "coarse-wsd" / "bank", directory / "coarsewsd20" / word)
    (directory / "conll2003").mkdir()
    rows = [f"{name} NNP B-NP I-PER\nsees VBZ B-VP O\n{other} NNP B-NP I-PER\n" for name, other in
            itertools.permutations(("Ann", "Bob", "Cleo", "Dan"), 2)]  # fmt: skip
    for name in ("train", "testa", "testb"):
        (directory / "conll2003" / f"eng.{name}").write_text("\n".join(rows))
    return directory


@pytest.mark.slow
def test_every_stage_measures_a_model_and_fills_its_row(script: ModuleType, tmp_path: Path) -> None:
    text, output = write_text(tmp_path / "text.txt"), tmp_path / "results.json"
    options = ["--runs", tmp_path / "runs", "--corpus", text, "--heldout", text, "--minutes", "0.02"]
    options += ["--eval", write_data_sets(tmp_path / "eval"), "--encoders", "gated_cnn", "--max-epochs", "1"]
    options += ["--cache", tmp_path / "cache", "--output", output]
    with pytorch_threads(1):
        script.main([*script.STAGES, *map(str, options)])

    from encoders_table import HEAD, row

    found = json.loads(output.read_text())["gated_cnn"]
    assert found.keys() == script.STAGES.keys()
    cells = dict(zip(HEAD, row("gated_cnn", found), strict=True))
    assert [name for name, cell in cells.items() if cell == "–"] == ["Pseudo-perplexity"]
    assert len(cells["Tags, by layer"].split(" / ")) == 3 and cells["Sense pairs"].endswith(" of 20")


@pytest.mark.slow
def test_stages_run_are_recorded_and_not_repeated(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, output = write_text(tmp_path / "text.txt"), tmp_path / "results.json"
    options = ["--runs", str(tmp_path / "runs"), "--corpus", str(text), "--heldout", str(text), "--minutes", "0.03"]
    options += ["--output", str(output), "--encoders", "interleaved", "transformer"]
    with pytorch_threads(1):
        script.main(["pretrain", "heldout", *options])
        found = json.loads(output.read_text())
        capsys.readouterr()
        script.main(["pretrain", "heldout", *options])
    assert capsys.readouterr().out.count("is in results.json") == 4
    for encoder in ("interleaved", "transformer"):
        training = found[encoder]["pretrain"]
        assert 0 < training["processor_minutes"] < 0.06 and training["words"] > 0
    assert found["interleaved"]["heldout"]["measure"] == "pseudo-perplexity"
    assert 1 < found["interleaved"]["heldout"]["all"]["pseudo_perplexity"] < 13
    assert found["transformer"]["heldout"]["measure"] == "perplexity"

    from encoders_table import HEAD, row

    cells = dict(zip(HEAD, row("interleaved", found["interleaved"]), strict=True))
    assert cells["Perplexity"] == cells["Entities"] == "–" != cells["Pseudo-perplexity"]
    cells = dict(zip(HEAD, row("transformer", found["transformer"]), strict=True))
    assert cells["Pseudo-perplexity"] == "–" != cells["Perplexity"]


@pytest.mark.slow
def test_words_in_place_of_minutes_are_the_length_of_the_run(script: ModuleType, tmp_path: Path) -> None:
    options = ["--runs", tmp_path / "runs", "--corpus", write_text(tmp_path / "text.txt"), "--words", "2000"]
    options += ["--encoders", "gated_cnn", "--output", tmp_path / "results.json"]
    with pytorch_threads(1):
        script.main(["pretrain", *map(str, options)])
    found = json.loads((tmp_path / "results.json").read_text())["gated_cnn"]["pretrain"]
    step = TRAINING["batch_size"] * TRAINING["unroll_steps"]
    assert 2000 <= found["words"] <= 2000 + 2 * step  # both parts of the run end with a step
