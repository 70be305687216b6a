"""Pretraining runs: killed, interrupted and resumed; training and logging; errors before training
starts.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_process import kill, start_process
from tiny_model import tiny_model
from toy_encoders import write_config
from toy_run import NUM_SENTENCES, POSSIBLE_SENTENCES, WORDS_PER_SENTENCE

from elmokit.checkpoints.loading import load, save
from elmokit.data.preparation import prepare
from elmokit.lm.evaluation import evaluate
from elmokit.text.vocab import Vocab
from elmokit.train.config import FinetuneConfig, PretrainConfig
from elmokit.train.finetuning import finetune
from elmokit.train.pretraining import pretrain
from elmokit.train.snapshots import latest_snapshot, read_snapshot
from elmokit.train.trainer import Trainer

pytestmark = pytest.mark.any_backend

WEIGHTS = ["model.safetensors", "softmax.safetensors"]


def pretrained(settings: PretrainConfig) -> Path:
    """The directory of the finished model."""
    return pretrain(settings).model


def events(output: Path, kind: str) -> list[dict[str, Any]]:
    log = output / "log.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def wait_for_step(output: Path, step: int, has_ended: Callable[[], bool]) -> None:
    while not any(event["step"] >= step for event in events(output, "train")):
        assert not has_ended(), f"the run ended before step {step}"
        time.sleep(0.002)


def kill_at_step(settings: PretrainConfig, step: int, output: Path | None = None) -> None:
    """Start a run in another process, and kill it when the log in `output` reaches the step."""
    print(f"killed at step {step} or soon after")  # which pytest shows when the test fails
    process = start_process(pretrain, settings)
    wait_for_step(output or settings.output, step, lambda: not process.is_alive())
    kill(process)
    assert process.exitcode == -signal.SIGKILL


def assert_same_model(left: Path, right: Path) -> None:
    for name in WEIGHTS:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


# --- Interrupted and resumed ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("recipe, encoder", [("original", None), ("muon", "interleaved")])
def test_pretrain_killed_at_any_step_ends_with_the_same_bytes(
    settings: PretrainConfig, tmp_path: Path, recipe: Any, encoder: str | None
) -> None:
    config = None if encoder is None else write_config(encoder, tmp_path / "config.json")
    settings = replace(
        settings, config=config, recipe=recipe, heldout=settings.corpus, evaluate_every=30
    )
    whole = pretrained(replace(settings, output=tmp_path / "whole"))
    kill_at_step(settings, random.SystemRandom().randrange(12, 45))
    assert not (settings.output / "model").exists()
    resumed = pretrained(settings)
    assert events(settings.output, "resume")[0]["step"] % 11 == 0
    assert_same_model(resumed, whole)


@pytest.mark.slow
def test_pretrain_terminated_writes_a_checkpoint_first(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    process = start_process(pretrain, settings)
    wait_for_step(settings.output, 15, lambda: not process.is_alive())
    process.terminate()
    process.join()
    assert process.exitcode == 1  # by the KeyboardInterrupt that it raises
    last = events(settings.output, "train")[-1]["step"]
    stopped = latest_snapshot(settings.output / "checkpoints")
    assert stopped is not None
    assert read_snapshot(stopped).progress["step"] == last
    assert last < events(settings.output, "start")[0]["total_steps"]
    assert_same_model(
        pretrained(settings), pretrained(replace(settings, output=tmp_path / "whole"))
    )


def test_pretrain_refuses_a_checkpoint_of_another_run_and_names_what_differs(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    settings = replace(settings, max_words=30)
    pretrain(settings)
    pretrain(replace(settings, log_every=3))  # which may differ
    (tmp_path / "changed.txt").write_text(settings.corpus[0].read_text().replace("cat", "cow"))
    *others, last, rarest = Vocab.read(settings.output / "vocab.txt").words
    Vocab([*others, rarest, last]).write(tmp_path / "vocab.txt")
    for changes, names in (
        (
            {"dropout": 0.0, "recipe": "original"},
            "recipe, schedule, learning_rate, fresh_starts, dropout, total_steps",
        ),
        ({"preset": "small"}, "model"),
        ({"epochs": 3, "max_words": None}, "total_steps"),
        ({"vocab": tmp_path / "vocab.txt"}, "vocabulary"),
        ({"corpus": (tmp_path / "changed.txt",)}, "corpus"),
    ):
        with pytest.raises(ValueError, match=rf"another run \({names} differ\)"):
            pretrain(replace(settings, **changes))


# --- Runs without a planned end -------------------------------------------------------------------


@pytest.fixture
def endless(settings: PretrainConfig) -> PretrainConfig:
    """Settings of a constant run of 33 steps, each of 20 positions, six sevenths of which are
    words.
    """
    return replace(settings, recipe="muon", schedule="constant", max_words=566)


def test_pretrain_constant_stops_at_max_words_and_resumes_with_more(
    endless: PretrainConfig, tmp_path: Path
) -> None:
    first = pretrain(endless)
    assert (first.reason, first.step, first.words) == ("words", 34, 583)
    more = pretrain(replace(endless, max_words=800))
    whole = pretrain(replace(endless, max_words=800, output=tmp_path / "whole"))
    assert more.step == whole.step == 47
    assert_same_model(more.model, whole.model)
    rates = [event["learning_rate"] for event in events(endless.output, "train")]
    assert rates == [
        pytest.approx(4e-3 * step / 1000) for step in range(1, 48)
    ]  # during the warm-up


def test_pretrain_stops_at_max_hours_with_a_model_and_goes_on(endless: PretrainConfig) -> None:
    report = pretrain(replace(endless, max_hours=1e-9))
    assert (report.reason, report.step) == ("hours", 0)
    planned = replace(endless, schedule="cosine", output=endless.output / "planned")
    stopped = pretrain(replace(planned, max_hours=1e-9))
    assert load(stopped.model).softmax is not None  # the model so far
    assert "run the same command again" in str(stopped)
    assert pretrain(planned).step > 0


@pytest.mark.slow
def test_cool_down_finishes_a_run_without_changing_it(
    endless: PretrainConfig, tmp_path: Path
) -> None:
    pretrain(endless)
    cooled = pretrain(replace(endless, cool_down=200))
    assert cooled.reason == "end"
    assert cooled.step == 34 + 12
    log = events(cooled.model.parent, "train")
    expected = [4e-3 * step / 1000 * min(1, (47 - step) / 13) for step in range(35, 47)]
    assert [event["learning_rate"] for event in log] == pytest.approx(expected)
    assert "cool-down: from step 34 over 12 steps" in load(cooled.model).card
    half = pretrain(replace(endless, cool_down=0.5))  # of 34 steps
    assert (half.model.parent.name, half.step) == ("cool-down-00000034-17", 51)
    more, whole = (
        pretrained(replace(endless, max_words=800, output=output))
        for output in (endless.output, tmp_path / "whole")
    )
    assert_same_model(more, whole)


# --- Divergence -----------------------------------------------------------------------------------


def diverging(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[Trainer], bool]) -> None:
    """The losses of steps after which `is_bad` are five nats higher."""
    train_step = Trainer.train_step
    monkeypatch.setattr(
        Trainer, "train_step", lambda trainer: train_step(trainer) + 5 * is_bad(trainer)
    )


@pytest.mark.slow
def test_a_run_that_diverges_goes_back_with_half_the_rate(
    settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From step 40 on, until the rate is a quarter; a snapshot from which it diverges again is
    given up.
    """
    diverging(monkeypatch, lambda trainer: trainer.step > 39 and trainer.rate_factor > 0.25)
    assert pretrain(settings).step == 70
    diverged = events(settings.output, "diverged")
    assert [event["rate_factor"] for event in diverged] == [0.5, 0.25]
    assert [event["restored"] for event in diverged] == [33, 22]
    assert all(
        40 < event["step"] < 44 for event in diverged
    )  # the smoothed loss rises within a few steps
    assert (
        "step 43: the loss diverged; training goes on from step 22 with the "
        in capsys.readouterr().out
    )
    rates = {event["step"]: event["learning_rate"] for event in events(settings.output, "train")}
    assert rates[70] == pytest.approx(0.25 * 0.002 * 0.05, rel=0.1)


# --- Whole runs -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_pretrain_learns_and_logs_events(settings: PretrainConfig) -> None:
    settings = replace(settings, epochs=8, dropout=0.0, tokenizer="whitespace-1")
    settings = replace(settings, heldout=settings.corpus, evaluate_every=60, log_every=20)
    model = load(pretrained(settings))
    (begun,) = events(settings.output, "start")
    (ended,) = events(settings.output, "end")
    heldout = events(settings.output, "heldout")
    assert (begun["sentences"], begun["words"]) == (
        NUM_SENTENCES,
        NUM_SENTENCES * WORDS_PER_SENTENCE,
    )
    assert begun["total_steps"] == 8 * 700 // 20  # positions of the stream, and of a step
    assert [event["step"] for event in heldout] == [60, 120, 180, 240]
    assert heldout[0]["mean"] > heldout[-1]["mean"] > ended["mean"]
    # 7 predictions per sentence, of 13 words.
    assert POSSIBLE_SENTENCES ** (1 / 7) < ended["forward"] < 5
    assert model.tokenizer == "whitespace-1"
    assert model.vocab == Vocab.read(settings.output / "vocab.txt")
    assert f"{ended['mean']:.2f}" in model.card


@pytest.mark.slow
def test_pretrain_starts_from_the_weights_and_vocabulary_of_a_model(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    first = pretrained(replace(settings, tokenizer="whitespace-1", seed=1))
    still = {
        "recipe": "muon",
        "schedule": "constant",
        "learning_rate": 1e-30,
        "max_words": 100,
        "config": None,
    }
    (tmp_path / "heldout.txt").write_text("the cat likes a dog .\na hen .\n")
    heldout = *settings.corpus, tmp_path / "heldout.txt"
    more = replace(
        settings,
        output=tmp_path / "more",
        initial_model=str(first),
        vocab_size=5,
        heldout=heldout,
        **still,
    )
    before = load(first)
    after = load(pretrained(more))
    total = evaluate(heldout, after, tokenize=False).total
    assert events(more.output, "end")[0]["mean"] == pytest.approx(total.value, rel=1e-6)
    assert after.vocab == before.vocab
    assert after.tokenizer == "whitespace-1"
    assert str(first) in after.card
    for name, weight in before.bilm.state_dict().items():
        assert torch.allclose(after.bilm.state_dict()[name], weight, rtol=1e-6), name
    assert torch.allclose(after.softmax.weight, before.softmax.weight, rtol=1e-6)  # type: ignore[union-attr]
    other = pretrained(replace(settings, output=tmp_path / "other", seed=2))
    files = {"initial_model": None, "config": first / "config.json", "vocab": first / "vocab.txt"}
    for changes in ({"initial_model": str(other)}, files):
        with pytest.raises(ValueError, match=r"another run \(start differ\)"):
            pretrain(replace(more, max_words=200, **changes))


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_model_records_the_language_by_which_text_is_split(
    settings: PretrainConfig, tmp_path: Path, is_prepared: bool
) -> None:
    raw = tmp_path / "raw.txt"
    raw.write_text(
        "Der 3. Oktober ist ein Feiertag. Er geht.\n" * 20
    )  # English rules end a sentence after "3."
    if is_prepared:
        prepare(
            [raw],
            tmp_path / "shards",
            language="de",
            processes=1,
            drop_duplicates="none",
            drop_paragraphs=False,
        )
    corpus = (
        {"corpus": (tmp_path / "shards",)} if is_prepared else {"corpus": (raw,), "language": "de"}
    )
    german = replace(settings, heldout=(raw,), tokenize=True, max_words=100, **corpus)
    model = load(pretrained(german))
    assert (model.tokenizer, model.language) == ("words-1", "de")
    assert "language: de" in model.card
    (logged,), total = events(german.output, "end"), evaluate([raw], model).total
    assert total.sentences == logged["sentences"] == 40
    assert total.value == pytest.approx(logged["mean"], rel=1e-6)
    assert evaluate([raw], replace(model, language=None)).total.sentences == 60
    tuned = FinetuneConfig(
        (raw,), tmp_path / "tuned", model=str(german.output / "model"), max_words=10, threads=1
    )
    assert load(finetune(tuned).model).language == "de"


# --- Before training ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*is read as raw text, but looks tokenized")
def test_what_cannot_be_trained_is_refused_before_the_training(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    for name, content in {"bad": b"fine\nnot \xff\n", "raw": b"The cat sees.\n" * 50}.items():
        (tmp_path / name).write_bytes(content)
    prepare([tmp_path / "raw"], tmp_path / "shards", processes=1)
    save(tiny_model(), tmp_path / "headless")
    words = Vocab.from_counts(Vocab.count_words(settings.corpus)).words
    Vocab([*words[:3], *reversed(words[3:])]).write(tmp_path / "ascending.txt")
    (tmp_path / "taken" / "model").mkdir(parents=True)
    (tmp_path / "taken" / "model" / "notes.txt").write_text("mine")
    for changes, message in (
        ({"corpus": (tmp_path / "bad",)}, "line 2"),
        ({"corpus": (tmp_path / "shards",), "tokenizer": "words-1"}, "english-1"),
        ({"initial_model": str(tmp_path / "headless")}, "softmax"),
        ({"vocab": tmp_path / "ascending.txt"}, "frequency"),
        ({"schedule": "constant", "cool_down": 200}, "no checkpoint"),
        ({"output": tmp_path / "taken"}, "overwritten"),
    ):
        with pytest.raises((ValueError, FileExistsError), match=message):
            pretrain(replace(settings, **changes))
    assert not events(settings.output, "train")
    assert os.listdir(tmp_path / "taken") == ["model"]


def test_a_run_of_few_steps_is_warned_of(settings: PretrainConfig) -> None:
    few = replace(settings, max_words=None, epochs=1, batch_size=64)
    with pytest.warns(UserWarning, match="steps teach"):
        pretrain(few)
