"""The recipe of the bundled model, in miniature: from raw text to model card."""

import io
import json
import os
import random
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.checkpoints.loading import load
from elmokit.config import BiLMConfig
from elmokit.text.vocab import Vocab

RECIPES = Path(__file__).parents[2] / "recipes"
NOUNS = ["cat", "dog", "fox", "hen", "owl", "cow"]
VERBS = ["sees", "likes", "chases", "feeds", "meets"]
sys.path.append(str(RECIPES / "small"))


def write_documents(path: Path, draw: random.Random, documents: int) -> None:
    def sentence() -> str:
        return (
            f"The {draw.choice(NOUNS)} of {draw.randrange(100)} {draw.choice(VERBS)} a "
            f"{draw.choice(NOUNS)}."
        )

    text = "\n\n".join(" ".join(sentence() for _ in range(8)) for _ in range(documents))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.ZstdCompressor().compress(f"{text}\n".encode()))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    draw = random.Random(0)
    for name in ("alpha", "beta"):
        write_documents(tmp_path / "corpus" / "train" / f"{name}-000.txt.zst", draw, 60)
    write_documents(tmp_path / "corpus" / "heldout" / "alpha.txt.zst", draw, 6)
    return tmp_path / "corpus"


@pytest.mark.slow
def test_recipe_makes_a_model_with_its_card_from_raw_text(corpus: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BiLMConfig.preset("tiny").to_dict()))
    model = tmp_path / "tiny-en"
    settings = {
        "SHARDS": 2,
        "CONFIG": config,
        "VOCAB_SIZE": 60,
        "WORDS": 4000,
        "COOL_DOWN": 2000,
        "BATCH_SIZE": 8,
        "UNROLL_STEPS": 10,
        "LEARNING_RATE": 0.06,
        "NUM_SAMPLES": 20,
        "THREADS": 1,
        "HELDOUT_WORDS": 200,
        "MODEL": model,
        "RESULTS": tmp_path / "results",
        "PYTHON": sys.executable,
    }

    environment = os.environ | {name: str(value) for name, value in settings.items()}
    command = ["bash", str(RECIPES / "small" / "train.sh"), "en"]
    command += [str(corpus), str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results" / "heldout_perplexity.json").read_text())
    loaded = load(model)
    assert loaded.tokenizer == "english-1"
    assert len(loaded.vocab) == 60
    assert (
        "float32 products" in loaded.card or "bfloat16 products" in loaded.card
    )  # auto, as it was resolved
    assert "| alpha |" in loaded.card
    assert "| all |" in loaded.card
    assert found["carry"]["all"]["mean"] < 30  # of 60 words: some was learnt


@pytest.mark.slow
def test_recipe_of_wikitext2_measures_the_test_part(tmp_path: Path) -> None:
    draw = random.Random(0)
    source = tmp_path / "wikitext"
    source.mkdir()
    for part in ("train", "valid", "test"):
        lines = [
            " \n = Title = \n \n",
            *(f" The {draw.choice(NOUNS)} {draw.choice(VERBS)} . \n" for _ in range(40)),
        ]
        (source / f"wiki.{part}.tokens").write_text("".join(lines) * 2)
    (tmp_path / "config.json").write_text(json.dumps(BiLMConfig.preset("tiny").to_dict()))
    settings = {
        "CONFIG": tmp_path / "config.json",
        "RESULTS": tmp_path,
        "EPOCHS": 3,
        "DTYPE": "float32",
        "THREADS": 1,
    }
    environment = (
        os.environ
        | {name: str(value) for name, value in settings.items()}
        | {"PYTHON": sys.executable}
    )
    command = ["bash", str(RECIPES / "wikitext2" / "train.sh"), str(source), str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "wikitext2.json").read_text())
    tokens = (source / "wiki.test.tokens").read_text().split()
    assert (
        found["test"]["predictions"] == len(tokens) + 2 * 43 + 2
    )  # each end of line, and of article
    assert 1 < found["test"]["forward"] < found["vocabulary"]
    assert found["training"]["words"] > 0


WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=5
)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.lists(WORDS, min_size=1, max_size=6), max_size=8), st.sets(WORDS))
def test_numbered_text_is_the_same_text(sentences: list[list[str]], frequent: set[str]) -> None:
    import pack_for_gpu

    words = [word for sentence in sentences for word in (*sentence, "\n")]
    packed = pack_for_gpu.to_numbers(words, ["\n", *sorted(frequent)])
    text = pack_for_gpu.from_numbers(packed, ["\n", *sorted(frequent)])
    assert [line.split(" ") for line in text.split("\n")[:-1]] == sentences


@pytest.mark.slow
def test_every_phase_on_a_gpu_has_a_dry_run_on_the_cpu(tmp_path: Path) -> None:
    draw = random.Random(0)
    corpus = tmp_path / "corpus"
    heldout = tmp_path / "heldout.txt"
    corpus.mkdir()
    (corpus / "corpus.json").write_text(json.dumps({"options": {"tokenizer": "english-1"}}))
    lines = [
        f"The {draw.choice(NOUNS)} {draw.choice(VERBS)} {draw.randrange(99)} ." for _ in range(3000)
    ]
    for number in range(4):
        text = "\n".join(lines[number::4]) + "\n"
        (corpus / f"shard-0000{number}.txt.zst").write_bytes(zstandard.compress(text.encode()))
    heldout.write_text("\n".join(lines[:60]) + "\n")
    vocab = Vocab.from_counts(Counter(" ".join(lines).split()))
    config = BiLMConfig.preset("tiny").to_dict()
    vocab.write(tmp_path / "vocab.txt")
    (tmp_path / "config.json").write_text(json.dumps(config))
    parts, size = [tmp_path / "first", tmp_path / "second"], 4_700  # of two shards each
    import pack_for_gpu

    mib = size / pack_for_gpu.MIB
    pack = f"{corpus} --heldout {heldout} --parts {parts[0]} {parts[1]} --mib {mib} --no-libraries"
    pack_for_gpu.main(pack.split())
    options = (
        f"--work {tmp_path}/work --output {tmp_path}/output --config {tmp_path}/config.json "
        f"--vocab {tmp_path}/vocab.txt --large tiny --samples 20 --sentences 40 --steps 3 "
        "--seconds 3 --evaluate-every 2 --learning-rate 0.06 --rows 4 8"
    )

    def run(part: Path, *phases: str) -> dict[str, Any]:
        script = [sys.executable, str(RECIPES / "small" / "on_gpu.py"), *phases]
        command = [*script, "--packed", str(part), *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "output" / "gpu.json").read_text())

    without = ("ceilings", "tests", "tuning")
    found = run(parts[0], "unpack", *without, "compare", "embedding", "steps")
    assert all(found[name]["skipped"] == "no CUDA device" for name in without)
    assert len(found["compare"]["differences"]) == 6  # outputs, and gradients of five inputs
    assert found["steps"]["8"]["positions_per_second"] > 0
    found = run(parts[1], "unpack", "train")
    shards = sorted((tmp_path / "work" / "corpus").iterdir())
    assert [line for number in range(4) for line in lines[number::4]] == "".join(
        map(Path.read_text, shards)
    ).splitlines()
    assert (found["unpack"]["files"], found["unpack"]["sentences"]) == (4, 3000)
    assert found["train"]["heldout"]["mean"] < 0.9 * len(vocab)  # some was learnt
    pieces = sorted((tmp_path / "output").glob("model.tar.*"))
    with tarfile.open(fileobj=io.BytesIO(b"".join(map(Path.read_bytes, pieces)))) as archive:
        archive.extractall(tmp_path, filter="data")
    model = load(tmp_path / "model")
    assert model.tokenizer == "english-1"
    assert model.softmax is not None
    assert model.vocab.words == vocab.words
