"""Fine-tuning: learning, interruption and resumption, with and without an initial softmax."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_encoders import write_config
from toy_run import settings_for, write_text

from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.data.preparation import prepare
from elmokit.lm.evaluation import evaluate
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab
from elmokit.train.config import FinetuneConfig
from elmokit.train.finetuning import finetune
from elmokit.train.pretraining import pretrain
from elmokit.train.snapshots import latest_snapshot, read_snapshot
from elmokit.train.trainer import Trainer


def write_domain(path: Path, seed: int) -> Path:
    """Write sentences with the words of the toy text, in an order that it never has."""
    draw = random.Random(seed)
    nouns = ["cat", "dog", "fox", "hen"]
    lines = [f"a {draw.choice(nouns)} the {draw.choice(nouns)} sees ." for _ in range(60)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model pretrained on the toy text, the same one without its softmax, and text of another
    domain.
    """
    folder = tmp_path_factory.mktemp("toy")
    settings = settings_for(write_text(folder / "toy.txt"), folder / "run")
    model = load(pretrain(replace(settings, epochs=4, dropout=0.0)).model)
    model.mix = MixWeights((0.0, 1.0, 2.0), 3.0)
    model.tokenizer = "whitespace-1"
    save(model, folder / "model")
    save(Pretrained(model.bilm, tokenizer="whitespace-1"), folder / "headless")
    write_domain(folder / "domain.txt", seed=1)
    write_domain(folder / "heldout.txt", seed=2)
    return folder


@pytest.fixture
def settings(folder: Path, tmp_path: Path) -> FinetuneConfig:
    """Settings of a run of about 40 steps."""
    return FinetuneConfig(
        corpus=(folder / "domain.txt",),
        output=tmp_path / "run",
        model=str(folder / "model"),
        tokenize=False,
        heldout=(folder / "heldout.txt",),
        others=(folder / "toy.txt",),
        min_count=1,
        batch_size=4,
        unroll_steps=5,
        epochs=2.0,
        softmax_epochs=2.0,
        num_samples=6,
        learning_rate=0.005,
        dtype="float32",
        device="cpu",
        threads=1,
        log_every=10,
        checkpoint_every=9,
    )


@pytest.mark.slow
def test_finetune_improves_the_domain_and_reports_both_texts(
    settings: FinetuneConfig, folder: Path
) -> None:
    report = finetune(settings)
    domain, other = (report.changes[str(folder / name)] for name in ("heldout.txt", "toy.txt"))
    assert domain.percent < -30
    assert other.percent > 0
    assert domain.percent == pytest.approx(100 * (domain.after.value / domain.before.value - 1))
    for place, change in ((folder / "model", "before"), (report.model, "after")):
        result = evaluate([*settings.heldout, *settings.others], place).files
        for name, perplexity in result.items():
            assert getattr(report.changes[name], change).value == pytest.approx(
                perplexity.value, rel=1e-6
            )
    written = json.loads((settings.output / "report.json").read_text())
    assert written[str(folder / "heldout.txt")]["after"]["mean"] == domain.after.value


def test_no_run_replaces_the_model_that_it_starts_from(
    settings: FinetuneConfig, folder: Path
) -> None:
    model = settings.output / "model"
    shutil.copytree(folder / "model", model)
    pretraining = settings_for(folder / "toy.txt", settings.output)
    with pytest.raises(ValueError, match="is the input"):
        finetune(replace(settings, model=str(model)))
    with pytest.raises(ValueError, match="is the input"):
        pretrain(replace(pretraining, initial_model=str(model / "config.json")))
    assert load(model).mix == MixWeights((0.0, 1.0, 2.0), 3.0)
    assert list(settings.output.iterdir()) == [model]


@pytest.mark.slow
def test_finetune_trains_a_missing_softmax_with_frozen_bilm(
    settings: FinetuneConfig, folder: Path
) -> None:
    settings = replace(settings, model=str(folder / "headless"), softmax_epochs=15.0)
    report = finetune(settings)
    snapshot = latest_snapshot(settings.output / "softmax/checkpoints")
    assert snapshot is not None
    fitted = read_snapshot(snapshot).with_prefix("bilm")
    start = load(folder / "headless").bilm.state_dict()
    assert all(torch.equal(fitted[name], start[name]) for name in start)
    tuned = load(report.model)
    assert any(
        not torch.equal(tensor, start[name]) for name, tensor in tuned.bilm.state_dict().items()
    )
    assert {"cat", "sees", "."} < set(tuned.vocab.words)
    change = report.changes[str(folder / "heldout.txt")]
    assert (
        change.after.value < change.before.value < 10
    )  # uniform guessing among 11 words has a perplexity of 11


@pytest.mark.slow
def test_finetune_interrupted_twice_ends_with_the_same_bytes(
    settings: FinetuneConfig, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, model=str(folder / "headless"))
    whole = finetune(replace(settings, output=tmp_path / "whole"))
    train_step = Trainer.train_step
    steps = iter(range(1, 1000))

    def step_until_killed(trainer: Trainer) -> torch.Tensor:
        if next(steps) % 25 == 0:
            raise MemoryError("killed")
        return train_step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", step_until_killed)
        for _ in range(2):  # while the new softmax is trained, and afterwards
            with pytest.raises(MemoryError):
                finetune(settings)
    resumed = finetune(settings)
    assert list(resumed.changes.values()) == list(whole.changes.values())
    for file in ("model.safetensors", "softmax.safetensors", "vocab.txt"):
        assert (resumed.model / file).read_bytes() == (whole.model / file).read_bytes(), file


def test_finetune_refuses_another_model_a_new_vocabulary_of_word_ids_and_other_shards(
    settings: FinetuneConfig, folder: Path, tmp_path: Path
) -> None:
    settings = replace(settings, max_words=20)
    finetune(settings)
    other = load(folder / "model")
    save(replace(other, tokenizer="english-1"), tmp_path / "english")
    with torch.no_grad():
        other.bilm.sequence_encoder.stacks[0].layers[0].bias.add_(1)
    save(other, tmp_path / "other")
    vocab = Vocab(["<S>", "</S>", "<UNK>", "a"])
    save(
        Pretrained(BiLM(BiLMConfig(LSTMConfig(1, 8, 4), None, 4)), vocab=vocab), tmp_path / "words"
    )
    prepare(
        [folder / "domain.txt"],
        tmp_path / "shards",
        tokenizer="words-1",
        language="de",
        processes=1,
    )
    shards = {"corpus": (tmp_path / "shards",), "tokenize": True}
    for model, message, changes in (
        ("other", "start differ", {}),
        ("words", "new_vocab", {"new_vocab": True}),
        ("english", "words-1", shards),
    ):
        with pytest.raises(ValueError, match=message):
            finetune(replace(settings, model=str(tmp_path / model), **changes))


def test_finetune_with_a_new_vocabulary_knows_the_words_of_the_corpus(
    settings: FinetuneConfig, folder: Path, tmp_path: Path
) -> None:
    text = tmp_path / "foreign.txt"
    text.write_text("der cat sees a hund .\n" * 30)
    foreign = replace(
        settings, corpus=(text,), heldout=(text,), others=(), max_words=40, new_vocab=True
    )
    report = finetune(foreign)
    tuned = load(report.model)
    assert set(tuned.vocab.words[3:]) == set(text.read_text().split())
    assert report.changes[str(text)].after.unknown_share == 0
    assert tuned.bilm.config == load(folder / "model").bilm.config


@pytest.mark.slow
def test_finetune_of_interleaved_lstms_improves_their_own_measure(
    settings: FinetuneConfig, folder: Path, tmp_path: Path
) -> None:
    base = settings_for(folder / "toy.txt", tmp_path / "base")
    model = pretrain(
        replace(base, config=write_config("interleaved", tmp_path / "config.json"), dropout=0.0)
    ).model
    report = finetune(replace(settings, model=str(model)))
    change = report.changes[str(folder / "heldout.txt")]
    name = "pseudo-perplexity"
    assert change.before.measure == change.after.measure == name
    assert change.percent < 0
    written = json.loads((settings.output / "report.json").read_text())[str(folder / "heldout.txt")]
    assert written["before"]["measure"] == name
    assert name in str(report)
    assert f"| {name} " in load(report.model).card
