"""The recipe of the bundled model, in miniature: from raw text to model card."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from elmokit.checkpoints.loading import load
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.train.config import PretrainConfig

RECIPES = Path(__file__).parents[2] / "recipes"
NOUNS, VERBS = ["cat", "dog", "fox", "hen", "owl", "cow"], ["sees", "likes", "chases", "feeds", "meets"]


def write_documents(path: Path, draw: random.Random, documents: int) -> None:
    def sentence() -> str:
        return f"The {draw.choice(NOUNS)} of {draw.randrange(100)} {draw.choice(VERBS)} a {draw.choice(NOUNS)}."

    text = "\n\n".join(" ".join(sentence() for _ in range(8)) for _ in range(documents))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.ZstdCompressor().compress(f"{text}\n".encode()))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    draw = random.Random(0)
    for name in ("alpha", "beta"):
        write_documents(tmp_path / "corpus" / "train" / f"{name}-000.txt.zst", draw, 60)
        write_documents(tmp_path / "corpus" / "heldout" / f"{name}.txt.zst", draw, 6)
    return tmp_path / "corpus"


def test_configurations_of_all_encoders_have_about_the_same_number_of_parameters() -> None:
    sizes = {}
    for name in ("lstm", "interleaved", "transformer", "gated_cnn"):
        config = BiLMConfig.from_dict(json.loads((RECIPES / "encoders" / f"{name}.json").read_text()))
        assert config.encoder_name == name
        encoder = BiLM(config).sequence_encoder
        sizes[name] = sum(parameter.numel() for parameter in encoder.parameters())
    assert max(sizes.values()) < 1.02 * min(sizes.values()), sizes
    shared = json.loads((RECIPES / "encoders" / "training.json").read_text())
    assert shared.pop("learning_rate").keys() == sizes.keys()
    PretrainConfig(corpus=(), output=Path("run"), **shared)


@pytest.mark.slow
def test_recipe_makes_a_model_with_its_card_from_raw_text(corpus: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BiLMConfig.preset("tiny").to_dict()))
    model = tmp_path / "tiny-en"
    settings = {
        "SHARDS": 2, "CONFIG": config, "VOCAB_SIZE": 60, "WORDS": 6000, "COOL_DOWN": 3000, "BATCH_SIZE": 8,
        "UNROLL_STEPS": 10, "LEARNING_RATE": 0.06, "NUM_SAMPLES": 20, "THREADS": 1,
        "HELDOUT_WORDS": 200, "MODEL": model, "RESULTS": tmp_path / "results", "PYTHON": sys.executable,
    }  # fmt: skip

    def make(runs: str, **more: Any) -> float:
        """Run the recipe; return the held-out perplexity."""
        environment = os.environ | {name: str(value) for name, value in (settings | more).items()}
        command = ["bash", str(RECIPES / "en_small" / "train.sh"), str(corpus), str(tmp_path / runs)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "results" / "heldout_perplexity.json").read_text())["carry"]["all"]["mean"]

    perplexity = make("runs")
    loaded = load(model)
    assert loaded.tokenizer == "english-1" and loaded.vocab is not None and len(loaded.vocab) == 60
    assert "float32 products" in loaded.card or "bfloat16 products" in loaded.card  # auto, as it was resolved
    assert "| alpha |" in loaded.card and "| all |" in loaded.card
    assert perplexity < 30  # of 60 words: some was learnt
    model.rename(tmp_path / "before")
    assert make("more_runs", INITIAL_MODEL=tmp_path / "before", WORDS_BEFORE=9000, SEED=1) < perplexity
    assert "began with the weights of a model that had read 9,000 words" in load(model).card


@pytest.mark.slow
def test_recipe_of_wikitext2_measures_the_test_part(tmp_path: Path) -> None:
    draw, source = random.Random(0), tmp_path / "wikitext"
    source.mkdir()
    for part in ("train", "valid", "test"):
        lines = [" \n = Title = \n \n", *(f" The {draw.choice(NOUNS)} {draw.choice(VERBS)} . \n" for _ in range(40))]
        (source / f"wiki.{part}.tokens").write_text("".join(lines) * 2)
    (tmp_path / "config.json").write_text(json.dumps(BiLMConfig.preset("tiny").to_dict()))
    settings = {"CONFIG": tmp_path / "config.json", "RESULTS": tmp_path, "EPOCHS": 60, "DTYPE": "float32", "THREADS": 1}
    environment = os.environ | {name: str(value) for name, value in settings.items()} | {"PYTHON": sys.executable}
    command = ["bash", str(RECIPES / "wikitext2" / "train.sh"), str(source), str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "wikitext2.json").read_text())
    tokens = (source / "wiki.test.tokens").read_text().split()
    assert found["test"]["predictions"] == len(tokens) + 2 * 43 + 2  # each end of line, and of article
    assert 1 < found["test"]["forward"] < found["vocabulary"] and found["training"]["words"] > 0
