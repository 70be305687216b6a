"""Pretraining runs: killed, interrupted and resumed; training and logging; errors before training starts."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from efml_files import write_efml
from own_process import kill, start_process
from safetensors import SafetensorError
from toy_encoders import WHOLE_SENTENCES, write_config
from toy_run import NUM_SENTENCES, NUM_WORDS, POSSIBLE_SENTENCES, WORDS_PER_SENTENCE, settings_for, write_text

import elmokit.train.snapshots as snapshots
from elmokit.checkpoints.formats.efml_settings import read_config
from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, InterleavedConfig, LSTMConfig
from elmokit.data.corpus import check_corpus
from elmokit.data.prepare import prepare
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab, count_words
from elmokit.train.config import FinetuneConfig, PretrainConfig
from elmokit.train.divergence import LossMonitor
from elmokit.train.early_stopping import EarlyStopping
from elmokit.train.finetune import finetune
from elmokit.train.loop import _Loop
from elmokit.train.pretrain import pretrain
from elmokit.train.schedule import Schedule
from elmokit.train.snapshots import latest_snapshot, read_snapshot
from elmokit.train.trainer import Trainer

pytestmark = pytest.mark.any_backend

WEIGHTS = ["model.safetensors", "softmax.safetensors"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "train.txt")


@pytest.fixture
def settings(text: Path, tmp_path: Path) -> PretrainConfig:
    return settings_for(text, tmp_path / "run")


def pretrained(settings: PretrainConfig) -> Path:
    """The directory of the finished model."""
    model = pretrain(settings).model
    assert model is not None
    return model


def start_command(settings: PretrainConfig) -> subprocess.Popen[str]:
    """Start the same run on the command line."""
    arguments: list[str] = []
    for name, value in vars(settings).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        elif value not in (None, ()):
            arguments += [f"--{option}", *map(str, value if isinstance(value, tuple) else (value,))]
    command = [sys.executable, "-m", "elmokit", "pretrain", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


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


# --- Interrupted and resumed ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["muon", "modern", "original"])
def test_pretrain_killed_at_any_step_ends_with_the_same_bytes(
    settings: PretrainConfig, tmp_path: Path, recipe: str
) -> None:
    settings = replace(settings, recipe=recipe)
    whole = pretrained(replace(settings, output=tmp_path / "whole"))
    kill_at_step(settings, random.SystemRandom().randrange(12, 45))
    assert not (settings.output / "model").exists()
    resumed = pretrained(settings)
    assert events(settings.output, "resume")[0]["step"] % 11 == 0
    assert_same_model(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["interleaved", "transformer", "gated_cnn"])
def test_pretrain_of_each_encoder_killed_ends_with_the_same_bytes(
    settings: PretrainConfig, tmp_path: Path, encoder: str
) -> None:
    config = write_config(encoder, tmp_path / "config.json")
    settings = replace(settings, config=config, recipe="muon", heldout=settings.corpus, evaluate_every=10)
    whole = pretrained(replace(settings, output=tmp_path / "whole"))
    kill_at_step(settings, random.SystemRandom().randrange(12, 45))
    resumed = pretrained(settings)
    assert events(settings.output, "resume")[0]["step"] % 11 == 0
    assert_same_model(resumed, whole)


@pytest.mark.parametrize("encoder", WHOLE_SENTENCES)
def test_pretrain_names_its_losses_and_its_measure(
    settings: PretrainConfig, tmp_path: Path, encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / "long.txt"
    long.write_text(settings.corpus[0].read_text() + " ".join(["the cat sees a dog ."] * 7) + "\n")
    settings = replace(settings, corpus=(long,), heldout=settings.corpus, evaluate_every=10, max_words=600)
    report = pretrain(replace(settings, config=write_config(encoder, tmp_path / "config.json")))
    is_merged = encoder == "interleaved"
    name = "pseudo-perplexity" if is_merged else "perplexity"
    assert (report.perplexity is None) == is_merged != (report.pseudo_perplexity is None)
    assert f"held-out {name}: " in str(report) and f"step 10: held-out {name} " in capsys.readouterr().out
    assert report.model is not None and f"- held-out {name} (exact softmax" in load(report.model).card
    losses = {key for key in events(settings.output, "train")[0] if key.startswith("loss_")}
    assert losses == ({"loss_masked"} if is_merged else {"loss_forward", "loss_backward"})
    for kind in ("heldout", "end"):
        event = events(settings.output, kind)[-1]
        assert event["measure"] == name and ("pseudo_perplexity" in event) == is_merged != ("mean" in event)
    assert events(settings.output, "end")[-1]["cut_sentences"] == report.cut_sentences == 1
    assert "sentences that were cut, being longer than a batch: 1" in str(report)


@pytest.mark.slow
def test_pretrain_terminated_writes_a_checkpoint_first(settings: PretrainConfig, tmp_path: Path) -> None:
    process = start_command(settings)
    wait_for_step(settings.output, 15, lambda: process.poll() is not None)
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 130 and "interrupted" in errors
    last = events(settings.output, "train")[-1]["step"]
    stopped = latest_snapshot(settings.output / "checkpoints")
    assert stopped is not None and read_snapshot(stopped).progress["step"] == last
    assert last < events(settings.output, "start")[0]["total_steps"]
    assert_same_model(pretrained(settings), pretrained(replace(settings, output=tmp_path / "whole")))


def test_pretrain_of_a_finished_run_trains_no_more(settings: PretrainConfig) -> None:
    model = pretrained(settings)
    before = [(model / name).read_bytes() for name in WEIGHTS]
    steps = len(events(settings.output, "train"))
    assert [(pretrained(settings) / name).read_bytes() for name in WEIGHTS] == before
    assert len(events(settings.output, "train")) == steps


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["modern", "original"])
def test_finished_run_is_extended_and_killed_ends_with_the_same_bytes(
    settings: PretrainConfig, tmp_path: Path, recipe: str
) -> None:
    settings = replace(settings, recipe=recipe)
    short = pretrain(replace(settings, epochs=1))
    assert short.step == 35
    shutil.copytree(settings.output, tmp_path / "twin")
    whole = pretrain(replace(settings, output=tmp_path / "twin"))
    kill_at_step(settings, random.SystemRandom().randrange(47, 60))
    more = pretrain(settings)
    assert more.step == whole.step == 70 and more.model is not None and whole.model is not None
    assert_same_model(more.model, whole.model)
    rates = {event["step"]: event["learning_rate"] for event in events(tmp_path / "twin", "train")}
    schedule = Schedule("cosine", 35) if recipe == "modern" else Schedule("none", 35)
    for step in range(1, 71):  # the same schedule twice
        assert rates[step] == pytest.approx(trainer_rate(recipe) * schedule.factor((step - 1) % 35))


def test_extended_run_may_end_with_the_best_weights_of_its_first_cycle(
    settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    improves = EarlyStopping.improves
    monkeypatch.setattr(
        EarlyStopping, "improves", lambda self, value, step: step not in (35, 70) and improves(self, value, step)
    )
    settings = replace(settings, heldout=settings.corpus, patience=99, evaluate_every=10)
    first = pretrain(replace(settings, epochs=1))
    (settings.output / "log.jsonl").unlink()
    more = pretrain(replace(settings, evaluate_every=1000))
    assert (first.step, more.step) == (35, 70)
    assert first.perplexity == more.perplexity  # that of step 30
    assert [event["step"] for event in events(settings.output, "train")][-1] == 70


def test_extended_run_that_diverges_goes_back_to_a_checkpoint_of_its_first_cycle(
    settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain(replace(settings, epochs=1))
    has_diverged = iter([True] * 4)
    monkeypatch.setattr(LossMonitor, "has_diverged", lambda *_: next(has_diverged, False))
    assert pretrain(settings).step == 70
    diverged = events(settings.output, "diverged")
    assert [event["restored"] for event in diverged] == [35, 35, 33, 33]
    assert [event["rate_factor"] for event in diverged] == [1 / 2, 1 / 8, 1 / 64, 1 / 1024]


def test_loss_that_stays_a_little_high_delays_checkpoints_but_does_not_stop_them(
    settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on text that is harder by 0.7 nats, which is too little to count as divergence."""
    monitor = LossMonitor()
    assert not any(monitor.has_diverged(loss, 1.0) for loss in [3.0] * 100 + [3.7] * 1000) and not monitor.is_calm
    monkeypatch.setattr(LossMonitor, "is_calm", False)
    pretrain(settings)
    names = sorted(path.name for path in (settings.output / "checkpoints").iterdir())
    assert names == ["step-00000055", "step-00000070"]  # 70 is the last step
    assert pretrain(replace(settings, epochs=3)).step == 105


def test_a_run_that_ends_by_time_while_the_loss_rises_says_where_it_will_resume(
    settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LossMonitor, "is_calm", False)
    monkeypatch.setattr(_Loop, "_reason_to_end", lambda self: "hours" if self.trainer.step == 10 else None)
    assert pretrain(settings).step == 10
    assert "the loss is rising: the run will resume from step 0" in capsys.readouterr().out


def trainer_rate(recipe: str) -> float:
    return {"modern": 2e-3, "original": 0.2}[recipe]


def test_unfinished_run_with_a_cosine_is_not_extended(settings: PretrainConfig) -> None:
    assert pretrain(replace(settings, max_hours=1e-9)).reason == "hours"
    with pytest.raises(ValueError, match=r"belongs to another run: epochs was 2\.0, is 3\.0\."):
        pretrain(replace(settings, epochs=3))


def test_pretrain_refuses_a_checkpoint_with_other_settings_and_names_them(settings: PretrainConfig) -> None:
    settings = replace(settings, max_words=30)
    pretrain(settings)
    other = replace(settings, dropout=0.0, recipe="original", preset="small", checkpoint_every=3)
    with pytest.raises(ValueError, match="to another run") as caught:
        pretrain(other)
    for part in ("dropout was 0.2, is 0.0", "recipe was modern, is original", "preset was tiny, is small"):
        assert part in str(caught.value)
    assert "model" not in str(caught.value)  # it follows from the preset
    assert "checkpoint_every" not in str(caught.value)  # it may differ


def test_pretrain_refuses_a_checkpoint_of_another_vocabulary(settings: PretrainConfig, tmp_path: Path) -> None:
    settings = replace(settings, max_words=30)
    pretrain(settings)
    *others, last, rarest = Vocab.read(settings.output / "vocab.txt").words
    Vocab([*others, rarest, last]).write(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match="to another run: the vocabulary has changed"):
        pretrain(replace(settings, vocab=tmp_path / "vocab.txt"))


@pytest.mark.slow
def test_pretrain_on_a_full_disk_keeps_the_previous_checkpoint(
    settings: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def save_until_full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        written.append(path)
        if len(written) <= 2:
            return real_save(tensors, path)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))  # a limit on file size, in place of a full disk
        try:
            real_save(tensors, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    real_save = snapshots.save_file
    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "save_file", save_until_full)
        with pytest.raises((OSError, SafetensorError)):
            pretrain(settings)
    assert sorted(os.listdir(settings.output / "checkpoints")) == ["step-00000000", "step-00000011"]
    assert_same_model(pretrained(settings), pretrained(replace(settings, output=tmp_path / "whole")))


# --- Runs without a planned end ---------------------------------------------------------------------------------------


@pytest.fixture
def endless(settings: PretrainConfig) -> PretrainConfig:
    """Settings of a constant run of 33 steps, each of 20 positions, six sevenths of which are words."""
    return replace(settings, recipe="muon", schedule="constant", max_words=566)


def test_pretrain_constant_stops_at_max_words_and_resumes_with_more(endless: PretrainConfig, tmp_path: Path) -> None:
    first = pretrain(endless)
    assert (first.reason, first.step, first.words) == ("words", 34, 583)
    more = pretrain(replace(endless, max_words=800))
    whole = pretrain(replace(endless, max_words=800, output=tmp_path / "whole"))
    assert more.step == whole.step == 47
    assert more.model is not None and whole.model is not None
    assert_same_model(more.model, whole.model)
    rates = [event["learning_rate"] for event in events(endless.output, "train")]
    assert rates == [pytest.approx(4e-3 * step / 1000) for step in range(1, 48)]  # during the warm-up


def test_pretrain_stops_at_max_hours_with_a_checkpoint(endless: PretrainConfig) -> None:
    report = pretrain(replace(endless, max_hours=1e-9))
    assert (report.reason, report.step) == ("hours", 0) and report.model is not None
    planned = replace(endless, schedule="cosine", output=endless.output / "planned", max_hours=1e-9)
    report = pretrain(planned)
    assert report.model is None and "run the same command again" in str(report)


@pytest.mark.slow
def test_cool_down_finishes_a_run_without_changing_it(endless: PretrainConfig, tmp_path: Path) -> None:
    pretrain(endless)
    cooled = pretrain(replace(endless, cool_down=200))
    assert cooled.reason == "end" and cooled.step == 34 + 12 and cooled.model is not None
    log = events(cooled.model.parent, "train")
    expected = [4e-3 * step / 1000 * min(1, (47 - step) / 13) for step in range(35, 47)]
    assert [event["learning_rate"] for event in log] == pytest.approx(expected)
    assert "cool-down: from step 34 over 12 steps" in load(cooled.model).card

    again = pretrain(replace(endless, cool_down=0.5, cool_down_from=33))  # half of 33 steps
    assert again.model is not None and again.model.parent.name == "cool-down-00000033-16" and again.step == 49
    more, whole = (
        pretrained(replace(endless, max_words=800, output=output)) for output in (endless.output, tmp_path / "whole")
    )
    assert_same_model(more, whole)


@pytest.mark.slow
def test_cool_down_killed_ten_times_and_moved_ends_with_the_same_bytes(endless: PretrainConfig, tmp_path: Path) -> None:
    pretrain(endless)
    shutil.copytree(endless.output, tmp_path / "twin")
    whole = pretrained(replace(endless, cool_down=2000, output=tmp_path / "twin"))
    settings = replace(endless, cool_down=2000.0, checkpoint_every=7)
    for number in range(10):
        step = 34 + 11 * number + random.SystemRandom().randrange(9)
        directory = next(iter(settings.output.glob("cool-down-*")), settings.output / "cool-down-00000034-117")
        kill_at_step(settings, step, directory)
        moved = tmp_path / f"moved-{number}"
        settings.output.rename(moved)
        settings = replace(settings, output=moved)
    assert_same_model(pretrained(settings), whole)


def test_cool_down_raises_without_a_checkpoint(endless: PretrainConfig) -> None:
    with pytest.raises(ValueError, match="no checkpoint to cool down from"):
        pretrain(replace(endless, cool_down=200))


def test_early_stopping_keeps_the_best_weights(settings: PretrainConfig, tmp_path: Path) -> None:
    """Learning one grammar eventually makes the reversed one less likely."""
    reverse = tmp_path / "heldout.txt"
    lines = settings.corpus[0].read_text().splitlines()
    reverse.write_text("".join(" ".join(reversed(line.split())) + "\n" for line in lines))
    settings = replace(settings, dropout=0.0, heldout=(reverse,), patience=3, evaluate_every=2, epochs=30)
    report = pretrain(settings)
    means = {event["step"]: event["mean"] for event in events(settings.output, "heldout")}
    best = min(means, key=means.__getitem__)
    assert report.reason == "patience" and report.step == max(means) == best + 3 * 2
    assert report.perplexity is not None and report.model is not None
    assert report.perplexity.mean == pytest.approx(means[best], rel=1e-6)
    assert pretrain(settings).step == max(means)  # a finished run is not continued


def test_early_stopping_keeps_the_last_step_where_it_is_the_best(settings: PretrainConfig) -> None:
    """A run is planned for 70 steps, and evaluated at step 40; the same without patience ends with step 70."""
    settings = replace(settings, heldout=settings.corpus, evaluate_every=40)
    patient = pretrain(replace(settings, patience=3))
    plain = pretrain(replace(settings, output=settings.output.with_name("plain")))
    assert patient.step == plain.step == 70 and patient.perplexity == plain.perplexity


def test_a_run_keeps_what_it_learned_since_the_best_weights_of_a_call_with_patience(settings: PretrainConfig) -> None:
    settings = replace(settings, heldout=settings.corpus, evaluate_every=10)
    pretrain(replace(settings, epochs=1, patience=9))
    longer = pretrain(settings)  # without patience, so that no weights of the best evaluation are kept
    again = pretrain(replace(settings, patience=9))
    assert again.step == longer.step == 70 and again.perplexity == longer.perplexity


@pytest.mark.filterwarnings("ignore:held-out text. 50% of the words")
def test_early_stopping_begins_anew_where_the_best_weights_were_not_kept(
    settings: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call without patience had the best evaluation of all, at step 10, of the same or of other held-out text."""
    improves, values = EarlyStopping.improves, iter([1.0, 9.0, 9.0])
    monkeypatch.setattr(EarlyStopping, "improves", lambda self, value, step: improves(self, next(values, value), step))
    settings = replace(settings, heldout=settings.corpus, schedule="constant", max_words=2000, evaluate_every=10)
    pretrain(settings)
    before = max(event["step"] for event in events(settings.output, "heldout"))
    other = tmp_path / "other.txt"
    other.write_text("a b\n")
    for heldout in (settings.heldout, (other,)):
        run = tmp_path / heldout[0].stem
        later = replace(settings, heldout=heldout, max_words=10_000, patience=1, output=run)
        shutil.copytree(settings.output, later.output)
        report = pretrain(later)
        assert report.step > before and latest_snapshot(later.output / "best") is not None


@pytest.mark.filterwarnings("ignore:.*lines of more than 150 words")
def test_an_evaluation_reads_no_more_than_its_words_of_a_long_line(settings: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(" ".join(["a"] * 5000))
    pretrain(replace(settings, heldout=(tmp_path / "long.txt",), evaluate_words=10, evaluate_every=5, max_words=500))
    predictions = {event["predictions"] for event in events(settings.output, "heldout")}
    assert predictions == {11}


def test_a_signal_ends_an_evaluation(settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_heldout = Trainer.measure_heldout

    def signalled(trainer: Trainer, files: list[Path], words: int | None, check: Any = None) -> Any:
        if words is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure_heldout(trainer, files, words, check)

    settings = replace(settings, heldout=settings.corpus, evaluate_every=5)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt, match="stopped at step 5"):
        patched.setattr(Trainer, "measure_heldout", signalled)
        pretrain(settings)
    assert not events(settings.output, "heldout")
    assert pretrain(settings).step == 70


def test_a_second_interrupt_ends_a_run_within_a_step(settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    train_step = Trainer.train_step

    def interrupted(trainer: Trainer) -> Any:
        if trainer.step == 15:
            os.kill(os.getpid(), signal.SIGINT)  # after which the step would be completed
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the step went on")
        return train_step(trainer)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start jobs that ignore it
    try:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Trainer, "train_step", interrupted)
            pretrain(settings)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pretrain(settings).step == 70
    assert events(settings.output, "resume")[0]["step"] == 11


def test_pretrain_refuses_to_write_its_vocabulary_into_its_corpus(settings: PretrainConfig) -> None:
    settings.output.mkdir()
    shutil.copy(settings.corpus[0], settings.output)
    with pytest.raises(ValueError, match=r"is both read and written to, so that vocab\.txt would be text"):
        pretrain(replace(settings, corpus=(settings.output,)))
    assert not (settings.output / "vocab.txt").exists()


def test_early_stopping_begins_anew_on_other_heldout_text(
    settings: PretrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other text is harder, so that none of its perplexities would be as low as the best one before."""
    reverse = tmp_path / "reverse.txt"
    lines = settings.corpus[0].read_text().splitlines()
    reverse.write_text("".join(" ".join(reversed(line.split())) + "\n" for line in lines))
    settings = replace(settings, dropout=0.0, heldout=settings.corpus, patience=3, evaluate_every=5)
    pretrain(replace(settings, epochs=1))
    capsys.readouterr()
    report = pretrain(replace(settings, heldout=(reverse,)))
    assert "the held-out text has changed" in capsys.readouterr().out
    values = {event["step"]: event["mean"] for event in events(settings.output, "heldout") if event["step"] > 35}
    assert report.perplexity is not None
    assert report.perplexity.mean == pytest.approx(min(values.values()), rel=1e-6)


def test_pretrain_resumed_within_an_interval_logs_the_mean_of_the_whole_interval(
    settings: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, log_every=10, epochs=1)
    pretrain(replace(settings, output=tmp_path / "whole"))
    train_step, steps = Trainer.train_step, iter(range(1, 1000))

    def step_until_killed(trainer: Trainer) -> torch.Tensor:
        if next(steps) == 13:
            raise MemoryError("killed")
        return train_step(trainer)

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(Trainer, "train_step", step_until_killed)
        pretrain(settings)  # from its checkpoint at step 11
    pretrain(settings)
    whole, resumed = (
        {event["step"]: (event["loss_forward"], event["loss_backward"]) for event in events(output, "train")}
        for output in (tmp_path / "whole", settings.output)
    )
    assert resumed == whole


def test_pretrain_leaves_the_random_state_and_the_threads_of_its_caller_alone(settings: PretrainConfig) -> None:
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(()).item(), random.random(), torch.get_num_threads()
    torch.manual_seed(5)
    random.seed(5)
    pretrain(replace(settings, max_words=20, threads=torch.get_num_threads() + 1))
    assert (torch.rand(()).item(), random.random(), torch.get_num_threads()) == expected


def test_patience_does_not_stop_a_cool_down(endless: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_improves(stopping: EarlyStopping, value: float, step: int) -> bool:
        stopping.evaluations_since += 1
        return False

    monkeypatch.setattr(EarlyStopping, "improves", never_improves)
    settings = replace(endless, heldout=endless.corpus, evaluate_every=2, patience=3)
    stopped = pretrain(settings)
    assert (stopped.reason, stopped.step) == ("patience", 6)
    cooled = pretrain(replace(settings, cool_down=0.5))
    assert (cooled.reason, cooled.step) == ("end", 9)


# --- Divergence -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["muon", "modern"])
def test_pretrain_recovers_from_divergence_at_learning_rate_100(
    settings: PretrainConfig, capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    settings = replace(settings, recipe=recipe, learning_rate=100.0, dropout=0.0, epochs=7)
    settings = replace(settings, log_every=5)
    report = pretrain(replace(settings, heldout=settings.corpus, evaluate_every=100_000))
    diverged = events(settings.output, "diverged")
    assert diverged and diverged[-1]["rate_factor"] < 0.1
    assert report.perplexity is not None and report.perplexity.mean < 5
    assert "the loss diverged; resuming from step " in capsys.readouterr().out


def test_pretrain_keeps_the_best_weights_found_between_a_checkpoint_and_a_divergence(
    settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best evaluation is at step 20, before a divergence; none of those after going back to step 11 is as good."""
    improves, values = EarlyStopping.improves, iter([9.0, 9.5, 9.6, 1.0])
    monkeypatch.setattr(EarlyStopping, "improves", lambda self, value, step: improves(self, next(values, 5.0), step))
    intervals = iter(range(1, 22))
    monkeypatch.setattr(LossMonitor, "has_diverged", lambda *_: next(intervals, 0) == 21)
    report = pretrain(replace(settings, heldout=settings.corpus, patience=3, evaluate_every=5))
    assert [event["restored"] for event in events(settings.output, "diverged")] == [11]
    assert (report.reason, report.step) == ("patience", 25)  # after the evaluations at steps 15, 20 and 25
    kept = latest_snapshot(settings.output / "best")
    assert kept is not None
    state = EarlyStopping.from_dict(read_snapshot(kept).progress["early_stopping"])
    assert (state.best, state.best_step, state.evaluations_since) == (1.0, 20, 0)


@pytest.mark.slow
def test_pretrain_diverging_and_killed_ends_with_the_same_bytes(settings: PretrainConfig, tmp_path: Path) -> None:
    settings = replace(settings, recipe="muon", schedule="constant", learning_rate=30.0, max_words=1500)
    whole = pretrained(replace(settings, output=tmp_path / "whole"))
    assert events(tmp_path / "whole", "diverged")
    kill_at_step(settings, 40)
    assert_same_model(pretrained(settings), whole)


def write_two_domains(directory: Path) -> tuple[Path, Path]:
    """A file of one sentence again and again, and one of words at random."""
    draw = random.Random(0)
    words = [f"w{number}" for number in range(200)]
    lines = [" ".join(draw.choices(words, k=9)) for _ in range(600)]
    easy, hard = directory / "easy.txt", directory / "hard.txt"
    easy.write_text("the cat sees the dog in the old garden\n" * 1200)
    hard.write_text("\n".join(lines) + "\n")
    return easy, hard


def test_pretrain_resumes_on_files_of_other_names_and_order(settings: PretrainConfig, tmp_path: Path) -> None:
    names = [tmp_path / f"{name}.txt" for name in "abc"]
    lines = settings.corpus[0].read_text().splitlines(keepends=True)
    for number, name in enumerate(names):
        name.write_text("".join(lines[number::3]))
    settings = replace(settings, corpus=tuple(names), schedule="constant", max_words=1000)
    whole = pretrained(replace(settings, output=tmp_path / "whole"))
    assert 0 < pretrain(replace(settings, max_words=350)).words < 500  # within a pass
    assert_same_model(pretrained(replace(settings, corpus=tuple(reversed(names)))), whole)


@pytest.mark.slow
def test_pretrain_goes_on_where_harder_text_begins_and_killed_there_ends_with_the_same_bytes(
    settings: PretrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # With this seed, the easy file is read first.
    settings = replace(settings, corpus=write_two_domains(tmp_path), recipe="modern", schedule="none", seed=1)
    settings = replace(settings, learning_rate=0.005, log_every=5, checkpoint_every=30, num_samples=0, epochs=1)
    whole = pretrained(replace(settings, output=tmp_path / "whole"))
    assert not events(tmp_path / "whole", "diverged")
    (harder,) = events(tmp_path / "whole", "harder_text")
    losses = [event["loss_forward"] for event in events(tmp_path / "whole", "train")]
    assert losses[-1] < harder["loss_before"] and min(losses) < 1 < losses[-1]
    assert "the text is harder here" in capsys.readouterr().out
    kill_at_step(settings, harder["step"])
    assert_same_model(pretrained(settings), whole)


# --- Whole runs --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pretrain_learns_and_logs_events(settings: PretrainConfig, text: Path) -> None:
    settings = replace(settings, epochs=8, dropout=0.0, heldout=(text,), evaluate_every=60, log_every=20)
    settings = replace(settings, tokenizer="whitespace-1")
    model = load(pretrained(settings))
    start_event, ended = (events(settings.output, kind)[0] for kind in ("start", "end"))
    train, heldout = events(settings.output, "train"), events(settings.output, "heldout")
    report = check_corpus([text])
    assert (
        (start_event["sentences"], start_event["words"])
        == (report.sentences, report.words)
        == (NUM_SENTENCES, NUM_SENTENCES * WORDS_PER_SENTENCE)
    )
    assert start_event["total_steps"] == int(8 * 700 / 20)  # the stream has 700 positions, a step reads 20
    assert [event["step"] for event in heldout] == [60, 120, 180, 240]
    assert heldout[0]["mean"] > heldout[-1]["mean"] > ended["mean"]
    for direction in ("forward", "backward"):
        assert POSSIBLE_SENTENCES ** (1 / 7) < ended[direction] < 5  # 7 predictions per sentence, 13 words
    assert ended["sentences"] == NUM_SENTENCES
    for loss in ("loss_forward", "loss_backward"):
        assert train[0][loss] > train[-1][loss]
    assert all(event["words_per_second"] > 0 and event["seconds_left"] >= 0 for event in train)
    assert all(event["processor_seconds"] > 0 for event in train)
    assert train[-1]["seconds_left"] == 0
    assert model.tokenizer == "whitespace-1" and model.vocab == Vocab.read(settings.output / "vocab.txt")
    assert f"{ended['mean']:.2f}" in model.card


def test_pretrain_gives_the_same_bytes_with_heldout_evaluation(settings: PretrainConfig, tmp_path: Path) -> None:
    settings = replace(settings, max_words=200)
    watched = replace(settings, heldout=settings.corpus, evaluate_every=2, evaluate_words=1)
    assert_same_model(pretrained(settings), pretrained(replace(watched, output=tmp_path / "watched")))


def test_settings_take_strings_for_paths() -> None:
    settings = PretrainConfig(corpus="a.txt", output="run", heldout=["b", Path("c")], vocab="v")  # type: ignore
    assert (settings.corpus, settings.heldout) == ((Path("a.txt"),), (Path("b"), Path("c")))
    assert (settings.output, settings.vocab, settings.config) == (Path("run"), Path("v"), None)
    tuning = FinetuneConfig(corpus="a.txt", output="run", others="d")  # type: ignore
    assert (tuning.corpus, tuning.others, tuning.output) == ((Path("a.txt"),), (Path("d"),), Path("run"))


def test_pretrain_prints_the_heldout_perplexity_during_the_run_and_after(
    settings: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    report = pretrain(replace(settings, max_words=200, heldout=settings.corpus, evaluate_every=2, log_every=1))
    assert "\nstep 2: held-out perplexity " in capsys.readouterr().out
    assert report.perplexity is not None and f"held-out perplexity: {report.perplexity.mean:.2f}" in str(report)


def test_pretrain_sizes_a_word_id_model_by_its_vocabulary(settings: PretrainConfig, tmp_path: Path) -> None:
    config = BiLMConfig(LSTMConfig(1, 8, 4), None, num_words=2)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    model = load(pretrained(replace(settings, config=tmp_path / "config.json", max_words=60)))
    assert model.vocab is not None
    assert model.bilm.config.num_words == len(model.vocab) and model.bilm.config.boundary_words == (0, 1)
    pretrain(replace(settings, config=tmp_path / "config.json", max_words=60, preset="small"))  # which has no effect


def test_pretrain_accepts_an_elmoformanylangs_config(settings: PretrainConfig, tmp_path: Path) -> None:
    config = read_config(write_efml(tmp_path / "old"))
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert load(pretrained(replace(settings, config=tmp_path / "config.json", max_words=60))).bilm.config == config


def test_pretrain_refuses_interleaved_directions(settings: PretrainConfig, tmp_path: Path) -> None:
    config = BiLMConfig(None, interleaved=InterleavedConfig(1, 8, 4, projects_layers=False))
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(ValueError, match="cannot predict words"):
        pretrain(replace(settings, config=tmp_path / "config.json"))


def test_pretrain_starts_from_the_weights_and_vocabulary_of_a_model(settings: PretrainConfig, tmp_path: Path) -> None:
    first = pretrained(replace(settings, tokenizer="whitespace-1", seed=1))
    still = {"recipe": "muon", "schedule": "constant", "learning_rate": 1e-30, "max_words": 100, "config": None}
    more = replace(settings, output=tmp_path / "more", initial_model=str(first), vocab_size=5, **still)
    before, after = load(first), load(pretrained(more))
    assert after.vocab == before.vocab and after.tokenizer == "whitespace-1" and str(first) in after.card
    for name, weight in before.bilm.state_dict().items():
        assert torch.allclose(after.bilm.state_dict()[name], weight, rtol=1e-6), name
    assert torch.allclose(after.softmax.weight, before.softmax.weight, rtol=1e-6)  # type: ignore[union-attr]
    other = pretrained(replace(settings, output=tmp_path / "other", seed=2))
    with pytest.raises(ValueError, match="the initial model has changed"):
        pretrain(replace(more, initial_model=str(other), max_words=200))
    config = first / "config.json"
    with pytest.raises(ValueError, match=r"vocab\.txt is missing: restore it, or give --vocab or --initial-model if"):
        pretrain(replace(more, initial_model=None, config=config, max_words=200))
    with pytest.raises(ValueError, match="the initial model has changed"):
        vocab = first / "vocab.txt"
        pretrain(replace(more, initial_model=None, config=config, vocab=vocab, vocab_size=50_000, max_words=200))


def test_pretrain_checks_the_order_of_the_vocabulary_of_an_initial_model(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    words = Vocab.from_counts(count_words(settings.corpus)).words
    Vocab([*words[:3], *reversed(words[3:])]).write(tmp_path / "rare_first.txt")
    full = replace(settings, vocab=tmp_path / "rare_first.txt", num_samples=0, max_words=20)
    model = pretrained(full)
    more = replace(settings, output=tmp_path / "more", initial_model=str(model), vocab=None, max_words=20)
    with pytest.raises(
        ValueError, match=r"the vocabulary of .* is not sorted by descending frequency: .*num-samples 0"
    ):
        pretrain(more)
    tuning = FinetuneConfig(
        corpus=settings.corpus, output=tmp_path / "tuned", model=str(model), tokenize=False, num_samples=6,
        batch_size=4, unroll_steps=5, max_words=20, device="cpu", threads=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"the vocabulary of the model is not sorted .*new_vocab, or give --num-samp"):
        finetune(tuning)
    assert finetune(replace(tuning, num_samples=0)).model.is_dir()


def test_pretrain_replaces_no_file_that_is_not_a_vocabulary(settings: PretrainConfig) -> None:
    settings.output.mkdir(parents=True)
    (settings.output / "vocab.txt").write_text("my precious list\n")
    with pytest.raises(FileExistsError, match=r"vocab\.txt is not a vocabulary of elmokit: move it"):
        pretrain(settings)
    assert (settings.output / "vocab.txt").read_text() == "my precious list\n"


def test_pretrain_refuses_an_initial_model_without_a_softmax(settings: PretrainConfig, tmp_path: Path) -> None:
    save(Pretrained(BiLM(BiLMConfig.preset("tiny"))), tmp_path / "vectors-only")
    with pytest.raises(ValueError, match="has no softmax to start from"):
        pretrain(replace(settings, initial_model=str(tmp_path / "vectors-only"), config=None))
    with pytest.raises(ValueError, match="omit config and vocab"):
        replace(settings, initial_model="en-small", vocab=tmp_path / "vocab.txt")


def test_pretrain_accepts_a_single_sentence(settings: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a single sentence of text .")
    pretrain(replace(settings, corpus=(tmp_path / "one.txt",), num_samples=0, epochs=2))
    assert events(settings.output, "start")[0]["total_steps"] == 1
    assert events(settings.output, "end")


def test_pretrain_builds_a_vocabulary_sorted_by_frequency(settings: PretrainConfig) -> None:
    pretrain(replace(settings, max_words=20))
    counts, words = count_words(settings.corpus), Vocab.read(settings.output / "vocab.txt").words
    assert words[:3] == ("<S>", "</S>", "<UNK>")
    assert list(words[3:]) == sorted(counts, key=lambda word: (-counts[word], word))


def test_pretrain_on_raw_text_equals_that_on_its_tokenized_sentences(settings: PretrainConfig, tmp_path: Path) -> None:
    paragraph = "Mr. Fox didn't see the hen. The hen, which saw Mr. Fox, ran!\n"
    (tmp_path / "raw.txt").write_text(paragraph * 20)
    tokenized = "Mr. Fox did n't see the hen .\nThe hen , which saw Mr. Fox , ran !\n"
    (tmp_path / "tokenized.txt").write_text(tokenized * 20)
    short = replace(settings, max_words=100)
    raw, same = (
        load(pretrained(replace(short, corpus=(tmp_path / name,), tokenize=tokenize, output=tmp_path / str(tokenize))))
        for name, tokenize in (("raw.txt", True), ("tokenized.txt", False))
    )
    assert (raw.tokenizer, same.tokenizer) == ("english-1", None)
    assert raw.vocab == same.vocab
    assert all(torch.equal(tensor, same.bilm.state_dict()[name]) for name, tensor in raw.bilm.state_dict().items())


def test_pretrain_records_the_tokenizer_that_it_splits_raw_text_with(settings: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "de.txt").write_text("Er kam am 3. Oktober um ca. 12 Uhr. Sie ging.\n" * 20)
    german = replace(settings, corpus=(tmp_path / "de.txt",), max_words=20, tokenize=True, language="de")
    assert load(pretrained(german)).tokenizer == "words-1"
    assert {"3.", "ca."} < set(Vocab.read(settings.output / "vocab.txt").words)


@pytest.mark.filterwarnings("ignore:.*is read as raw text, but looks tokenized")
def test_pretrain_shows_the_share_of_unknown_words_beside_its_perplexity(
    settings: PretrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "heldout.txt").write_text("the cat sees a zebra .\n" * 5)  # one of six words is unknown
    evaluated = replace(settings, heldout=(tmp_path / "heldout.txt",), max_words=40, evaluate_every=1)
    with pytest.warns(UserWarning, match="held-out text: 17% of the words are not in the model's vocabulary"):
        report = pretrain(evaluated)
    assert "16.7% of the words unknown" in capsys.readouterr().out
    assert "16.7% of them unknown" in str(report)
    assert "16.7% of the words unknown" in (settings.output / "model" / "README.md").read_text()


# --- Errors before training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["corpus", "heldout"])
@pytest.mark.parametrize(("content", "message"), [(b"fine\nnot \xff\n", "line 2"), (b"\n", "has no sentences")])
def test_pretrain_raises_for_bad_text_before_training(
    settings: PretrainConfig, tmp_path: Path, which: str, content: bytes, message: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"bad\.txt.*{message}"):
        pretrain(replace(settings, **{which: (tmp_path / "bad.txt",)}))
    assert not events(settings.output, "train")


def test_pretrain_refuses_a_corpus_whose_words_are_all_rare(settings: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "rare.txt").write_text("each word occurs once\n")
    with pytest.raises(ValueError, match="no word of the corpus occurs 2 times: give more text, or a lower min_count"):
        pretrain(replace(settings, corpus=(tmp_path / "rare.txt",), min_count=2))


def test_pretrain_refuses_a_language_where_all_text_is_split(settings: PretrainConfig, tmp_path: Path) -> None:
    prepare([*settings.corpus], tmp_path / "shards", tokenizer="whitespace-1")
    with pytest.raises(ValueError, match="has split all of the text already: omit the language"):
        pretrain(replace(settings, corpus=(tmp_path / "shards",), tokenize=True, language="de"))


def test_pretrain_says_that_heldout_text_is_trained_on(
    settings: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(replace(settings, max_words=40, heldout=settings.corpus))
    assert f"{settings.corpus[0]} is also trained on: its perplexity says nothing" in capsys.readouterr().out


def test_pretrain_refuses_a_vocabulary_without_special_tokens(settings: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("the\ncat\n")
    with pytest.raises(ValueError, match=r"vocab\.txt.*lacks <S> </S> <UNK>"):
        pretrain(replace(settings, vocab=tmp_path / "vocab.txt"))


def test_pretrain_uses_the_full_softmax_when_samples_cover_the_vocabulary(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    full, sampled = (
        pretrained(replace(settings, max_words=60, output=tmp_path / str(number), num_samples=number))
        for number in (0, NUM_WORDS)
    )
    assert (full / "model.safetensors").read_bytes() == (sampled / "model.safetensors").read_bytes()


def test_pretrain_refuses_a_vocabulary_of_other_words_and_warns_of_a_poor_one(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    words = Vocab.from_counts(count_words(settings.corpus)).words
    Vocab([*words[:3], *(f"{word} 1000" for word in words[3:])]).write(tmp_path / "counts.txt")
    with pytest.raises(
        ValueError, match=r"counts.txt has no word of the first 100,000 lines of the corpus: it must have one"
    ):
        pretrain(replace(settings, vocab=tmp_path / "counts.txt"))
    Vocab(words[:5]).write(tmp_path / "poor.txt")
    with pytest.warns(UserWarning, match=r"the corpus: .* are not in the model's vocabulary"):
        pretrain(replace(settings, vocab=tmp_path / "poor.txt", max_words=30))


def test_pretrain_without_the_vocabulary_of_before_says_so(settings: PretrainConfig, tmp_path: Path) -> None:
    Vocab.from_counts(count_words(settings.corpus)).write(tmp_path / "vocab.txt")
    settings = replace(settings, max_words=30)
    pretrain(replace(settings, vocab=tmp_path / "vocab.txt"))
    with pytest.raises(ValueError, match=r"vocab.txt is missing: restore it, or give --vocab"):
        pretrain(settings)


def test_pretrain_orders_only_a_vocabulary_from_which_words_are_drawn(settings: PretrainConfig, tmp_path: Path) -> None:
    words = Vocab.from_counts(count_words(settings.corpus)).words
    Vocab([*words[:3], *reversed(words[3:])]).write(tmp_path / "rare_first.txt")
    settings = replace(settings, vocab=tmp_path / "rare_first.txt", max_words=30)
    assert pretrain(replace(settings, num_samples=len(words))).model is not None


@pytest.mark.parametrize(
    ("name", "what"), [("a.jsonl", "JSON"), ("b.fasta", "protein sequences"), ("c.parquet", "a table")]
)
def test_pretrain_refuses_records_as_text(settings: PretrainConfig, tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_text(">P1 a protein\nMKV\n")
    with pytest.raises(ValueError, match=f"{name} holds {what}, not lines of text: "):
        pretrain(replace(settings, corpus=(tmp_path / name,)))


def test_pretrain_refuses_a_vocabulary_not_sorted_by_frequency(settings: PretrainConfig, tmp_path: Path) -> None:
    words = Vocab.from_counts(count_words(settings.corpus)).words
    Vocab([*words[:3], *reversed(words[3:])]).write(tmp_path / "rare_first.txt")
    Vocab([*words[3:], *words[:3]]).write(tmp_path / "specials_last.txt")
    with pytest.raises(ValueError, match="not sorted by descending frequency"):
        pretrain(replace(settings, vocab=tmp_path / "rare_first.txt"))
    with pytest.raises(ValueError, match="must begin with <S> </S> <UNK>"):
        pretrain(replace(settings, vocab=tmp_path / "specials_last.txt"))


def test_pretrain_refuses_a_checkpoint_of_another_corpus(settings: PretrainConfig, tmp_path: Path) -> None:
    settings = replace(settings, max_words=30)
    pretrain(settings)
    text = settings.corpus[0].read_text()
    (tmp_path / "moved.txt").write_text(text)
    pretrain(replace(settings, corpus=(tmp_path / "moved.txt",)))  # the path of a corpus does not matter
    (tmp_path / "changed.txt").write_text(text.replace("cat", "cow"))
    with pytest.raises(ValueError, match=r"belongs to another run: .*the corpus has changed"):
        pretrain(replace(settings, corpus=(tmp_path / "changed.txt",)))


def test_pretrain_rebuilds_a_stale_vocabulary(settings: PretrainConfig) -> None:
    settings.output.mkdir(parents=True, exist_ok=True)
    Vocab(["<S>", "</S>", "<UNK>", "stale"]).write(settings.output / "vocab.txt")
    pretrain(replace(settings, max_words=30))
    assert "cat" in Vocab.read(settings.output / "vocab.txt")


def test_pretrain_stops_on_a_nonfinite_loss_before_a_checkpoint(settings: PretrainConfig) -> None:
    with pytest.raises(ValueError, match=r"diverged at step .*set a lower learning rate"):
        pretrain(replace(settings, learning_rate=1e30, log_every=100, checkpoint_every=1))
    last = latest_snapshot(settings.output / "checkpoints")
    assert last is not None  # one is written before the first step
    assert all(tensor.isfinite().all() for tensor in read_snapshot(last).with_prefix("bilm").values())


def test_pretrain_checks_its_output_before_the_training(settings: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileExistsError, match="file is a file: name a directory"):
        pretrain(replace(settings, output=tmp_path / "file"))
    (settings.output / "model").mkdir(parents=True)
    (settings.output / "model" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no model, so it is not overwritten"):
        pretrain(settings)
    assert os.listdir(settings.output) == ["model"]


def test_pretrain_refuses_a_tokenizer_that_has_not_split_the_text(settings: PretrainConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer 'bogus'"):
        pretrain(replace(settings, tokenizer="bogus"))
    (tmp_path / "raw.txt").write_text("The cat sees the dog.\n" * 50)
    prepare([tmp_path / "raw.txt"], tmp_path / "shards")
    with pytest.raises(ValueError, match="split the corpus with english-1, not words-1"):
        pretrain(replace(settings, corpus=(tmp_path / "shards",), tokenizer="words-1"))


def test_pretrain_raises_for_an_unwritable_output(settings: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        pretrain(replace(settings, output=tmp_path / "file" / "run"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0), ("unroll_steps", 0), ("checkpoint_every", 0), ("dropout", 1.0), ("epochs", 0.0),
        ("max_hours", 0.0), ("patience", 0), ("patience", 3), ("cool_down", -1.0), ("cool_down", 100.0),
        ("cool_down_from", 11), ("seed", -1), ("seed", 2**63), ("vocab_size", 3), ("evaluate_words", 0),
        ("schedule", "linear"), ("recipe", "adam"), ("dtype", "float16"), ("min_count", 0),
        ("learning_rate", float("nan")), ("max_hours", float("inf")),
    ],
)  # fmt: skip
def test_pretrain_config_rejects_invalid_settings(settings: PretrainConfig, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        replace(settings, **{name: value})
