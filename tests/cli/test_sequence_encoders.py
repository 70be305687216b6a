"""Every verb that reads a model, with a model of every sequence encoder: it works, or says in one
line why not.
"""

from pathlib import Path

import pytest
import torch
from sequence_encoders import CARRYING, CONFIGS, INDEPENDENT, STATELESS, random_bilm

from elmokit import cli
from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
# In commands: the model's directory, and one for outputs; a bar stands for a space within an
# argument.
MODEL = "MODEL"
OUT = "OUT"

# In this order: some read what one before them wrote.
COMMANDS = [
    f"info --model {MODEL}",
    f"embed {DATA}/sentences.txt --output {OUT}/vectors --model {MODEL}",
    f"embed {DATA}/sentences.txt --output {OUT}/layers.hdf5 --layers all --model {MODEL}",
    f"encode {DATA}/sentences.txt --output {OUT}/sentences.npy --model {MODEL}",
    f"fit tagging {DATA}/train.conllu {DATA}/dev.conllu --model {MODEL} --output {OUT}/tagger "
    f"--max-epochs 1",
    f"predict {DATA}/test.conllu --model {OUT}/tagger --output {OUT}/tagged.conllu",
    f"evaluate {DATA}/test.conllu --model {OUT}/tagger",
    f"convert --model {MODEL} --output {OUT}/converted",
]
# These read vectors alone: they are run on the model of one layer.
ANALYSES = [
    f"neighbors play --in play --corpus {DATA}/sentences.txt --model {MODEL}",
    f"compare play they|play the|play --model {MODEL}",
    f"senses play --corpus {DATA}/sentences.txt --output {OUT}/senses.html --model {MODEL}",
    f"change the --first {DATA}/mouse-1950.txt --second {DATA}/mouse-2000.txt --model {MODEL}",
    f"probe {DATA}/train.conllu {DATA}/dev.conllu --model {MODEL}",
]
LANGUAGE_MODEL_COMMANDS = [
    f"evaluate {DATA}/heldout.txt --model {MODEL}",
    f"score {DATA}/sentences.txt --output {OUT}/scores.jsonl --model {MODEL}",
    f"score {DATA}/sentences.txt --output {OUT}/surprisal.csv --bits --model {MODEL}",
    f"substitutes children.play --model {MODEL}",
    f"finetune --corpus {DATA}/heldout.txt --max-words 300 --batch-size 4 --unroll-steps 5 "
    f"--output {OUT}/tuned --no-tokenize --model {MODEL}",
    f"pretrain --corpus {DATA}/heldout.txt --max-words 300 --batch-size 4 --unroll-steps 5 "
    f"--min-count 1 --no-tokenize --config {MODEL}/config.json --output {OUT}/run",
    f"info --model {OUT}/run/model",
]
NEXT_WORDS = f"next-words the --model {MODEL}"


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model of some encoder, over characters, with a softmax."""
    torch.manual_seed(2)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "the", "play", "a"])
    bilm = random_bilm(request.param, scale=0.3, characters=True).float()
    softmax = FullSoftmax(len(vocab), bilm.config.sequence_encoder.projection_dim)
    path = tmp_path_factory.mktemp("models") / request.param
    save(Pretrained(bilm, softmax=softmax, vocab=vocab, tokenizer="english-1"), path)
    return path


def run(command: str, model: Path, out: Path) -> int:
    """The exit status of a command, whether it returns or raises SystemExit."""
    try:
        parts = command.replace(MODEL, str(model)).replace(OUT, str(out)).split()
        return cli.main([part.replace("|", " ") for part in parts])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of a test set that is small, and the like
def test_verbs_read_every_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    for command in [*COMMANDS, *(ANALYSES if model.name == "elmoformanylangs" else [])]:
        assert run(command, model, tmp_path) == 0, (command, capsys.readouterr().err)
    assert (tmp_path / "tagged.conllu").read_text().count("\n") >= 90
    assert load(tmp_path / "converted").fingerprint() == load(model).fingerprint()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # nearly all words are unknown
def test_verbs_of_the_language_model_run_on_every_model_that_predicts_words(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if model.name == "elmoformanylangs":
        for command in LANGUAGE_MODEL_COMMANDS[:-1]:
            assert_refused_in_a_line(command, "cannot predict words", model, tmp_path, capsys)
    else:
        for command in LANGUAGE_MODEL_COMMANDS:
            assert run(command, model, tmp_path) == 0, (command, capsys.readouterr().err)
    if model.name in INDEPENDENT:
        assert run(NEXT_WORDS, model, tmp_path) == 0
    else:
        assert_refused_in_a_line(NEXT_WORDS, "cannot predict", model, tmp_path, capsys)


def assert_refused_in_a_line(
    command: str, reason: str, model: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(command, model, out) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert reason in line


def test_formats_of_lstms_alone_refuse_others(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if model.name == "lstm":
        pytest.skip("these formats hold LSTMs")
    for to in ("hdf5", *(["onnx"] if model.name == "transformer" else [])):
        assert_refused_in_a_line(
            f"convert --model {MODEL} --to {to} --output {OUT}/model",
            "LSTMs only",
            model,
            tmp_path,
            capsys,
        )
    assert not any(tmp_path.iterdir())


def test_carried_state_is_refused_by_models_without(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        f"encode {DATA}/sentences.txt --output {OUT}/sentences.npy --state carry --model {MODEL}"
    )
    if model.name in CARRYING:
        assert run(command, model, tmp_path) == 0
    else:
        assert model.name in STATELESS
        assert_refused_in_a_line(
            command, "carries no state: use state='zeros'", model, tmp_path, capsys
        )
        assert not any(tmp_path.iterdir())
