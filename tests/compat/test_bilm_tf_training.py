"""bilm-tf's functions of training: against bilm-tf's own perplexity, and from options to weights that load."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmokit.checkpoints.loading import load
from elmokit.compat.bilm_tf import Batcher, BidirectionalLanguageModel, BidirectionalLMDataset
from elmokit.compat.bilm_tf import training as bilm
from elmokit.train.config import PretrainConfig

OPTIONS: dict[str, Any] = {
    "bidirectional": True,
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 4},
        "filters": [[1, 8], [2, 8]],
        "max_characters_per_token": 12,
        "n_characters": 261,
        "n_highway": 1,
    },
    "dropout": 0.1,
    "lstm": {"dim": 8, "n_layers": 2, "projection_dim": 8, "use_skip_connections": True},
    "all_clip_norm_val": 10.0,
    "n_epochs": 2,
    "batch_size": 2,
    "unroll_steps": 5,
    "n_negative_samples_batch": 4,
}
WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "is", "on", "mat"]


@pytest.fixture
def data(tmp_path: Path) -> BidirectionalLMDataset:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "text.txt").write_text("the cat is on the mat\nthe mat is on the cat\n" * 5)
    return BidirectionalLMDataset(str(tmp_path / "text.txt"), bilm.load_vocab(tmp_path / "vocab.txt", 12))


@pytest.mark.filterwarnings("ignore:.*34% of the words are not in the model's vocabulary")
def test_perplexity_equals_that_of_bilm_tf(goldens: Callable[[str], Path]) -> None:
    heldout = goldens("bilm_tf_training/heldout.txt")
    options, checkpoint = bilm.load_options_latest_checkpoint(goldens("bilm_tf_training/tf_checkpoint"))
    vocab = bilm.load_vocab(heldout.with_name("vocab.txt"), options["char_cnn"]["max_characters_per_token"])
    data = BidirectionalLMDataset(str(heldout), vocab, test=True)
    expected = json.loads(heldout.with_name("expected.json").read_text())
    found = bilm.test(options, checkpoint, data, batch_size=1)
    assert found == pytest.approx(expected["perplexity_batch_1"], rel=1e-6)


@pytest.mark.slow
def test_training_writes_a_model_whose_weights_load(data: BidirectionalLMDataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    bilm.train(OPTIONS, data, 2, run, run)
    options, checkpoint = bilm.load_options_latest_checkpoint(run)
    assert options == OPTIONS and Path(checkpoint) == run / "model"
    model = load(checkpoint)
    assert model.vocab is not None and model.vocab.words == tuple(WORDS)
    assert (model.config.lstm.cell_dim, model.config.lstm.num_layers) == (8, 2)
    assert 1 < bilm.test(options, checkpoint, data, batch_size=1) < len(WORDS) + 1
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    bilm.train({**OPTIONS, "n_epochs": 3}, data, 2, run, run, checkpoint)
    assert len((run / "log.jsonl").read_text().splitlines()) > len(log)

    bilm.dump_weights(run, tmp_path / "weights.hdf5")
    options["char_cnn"]["n_characters"] = 262
    (tmp_path / "options.json").write_text(json.dumps(options))
    ids = Batcher(None, 12).batch_sentences([["the", "cat"]])
    dumped = BidirectionalLanguageModel(tmp_path / "options.json", tmp_path / "weights.hdf5")(ids)
    (layers,) = [BidirectionalLanguageModel(None, run / "model")(ids)["lm_embeddings"]]
    np.testing.assert_array_equal(dumped["lm_embeddings"], layers)


def test_checkpoint_of_an_unfinished_run_gives_its_weights_and_perplexity(
    data: BidirectionalLMDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    bilm.train({**OPTIONS, "n_epochs": 1}, data, 1, run, run)
    shutil.copytree(run / "model", tmp_path / "old")  # with the times of its files
    bilm.train({**OPTIONS, "n_epochs": 3}, data, 1, run, run)
    expected = load(run / "model")
    perplexity = bilm.test(OPTIONS, run / "model", data, batch_size=1)
    shutil.rmtree(run / "model")
    for has_old_model in (False, True):
        if has_old_model:
            (tmp_path / "old").rename(run / "model")
        options, checkpoint = bilm.load_options_latest_checkpoint(run)
        assert options["n_epochs"] == 3 and Path(checkpoint).name.startswith("step-")
        assert bilm.test(options, checkpoint, data, batch_size=1) == pytest.approx(perplexity, rel=1e-6)
        bilm.dump_weights(run, tmp_path / "weights.hdf5")
        with h5py.File(tmp_path / "weights.hdf5") as file:
            found = np.array(file["char_embed"])
        np.testing.assert_array_equal(found, expected.bilm.state_dict()["token_encoder.char_embedding"])
    (tmp_path / "other.txt").write_text("\n".join([*WORDS[:-2], "mat", "on"]) + "\n")
    other = BidirectionalLMDataset(str(tmp_path / "text.txt"), bilm.load_vocab(tmp_path / "other.txt", 12))
    with pytest.raises(ValueError, match="is not the vocabulary of"):
        bilm.test(options, checkpoint, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unroll_steps": 0}, "unroll_steps"),
        ({"lstm": {"dim": 8, "n_layers": 2}}, r"it lacks lstm\.projection_dim"),
        ({"lstm": {**OPTIONS["lstm"], "n_layers": 1}}, "a run of another architecture, .* choose another directory"),
    ],
)
def test_invalid_options_change_nothing_in_a_run(
    changes: dict[str, Any],
    message: str,
    data: BidirectionalLMDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(bilm, "pretrain", lambda settings: None)
    bilm.train(OPTIONS, data, 1, run, run)
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    before = {path.name: path.read_bytes() for path in run.glob("*.json")}
    with pytest.raises(ValueError, match=message):
        bilm.train({**OPTIONS, **changes}, data, 1, run, run)
    assert before == {path.name: path.read_bytes() for path in run.glob("*.json")}
    assert len(before) == 2
    bilm.train({**OPTIONS, "n_epochs": 3}, data, 1, run, run)  # the same architecture goes on
    (run / "architecture.json").write_text('{"model": ')  # of a kill, before it was written atomically
    bilm.train(OPTIONS, data, 1, run, run)
    assert (run / "architecture.json").read_bytes() == before["architecture.json"]


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {}),
        ({"sample_softmax": False, "dropout": None}, {"num_samples": 0, "dropout": 0.0}),
        ({"n_epochs": 3, "n_train_tokens": 70}, {"epochs": 3, "max_words": 210}),
        ({"learning_rate": 0.05, "unroll_steps": 7}, {"learning_rate": 0.05, "unroll_steps": 7}),
    ],
)
def test_options_of_bilm_tf_become_settings_of_the_trainer(
    changes: dict[str, Any],
    settings: dict[str, Any],
    data: BidirectionalLMDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[PretrainConfig] = []
    monkeypatch.setattr(bilm, "pretrain", runs.append)
    run = tmp_path / "run"
    bilm.train({**OPTIONS, **changes}, data, 2, run, tmp_path / "log")
    expected: dict[str, Any] = {
        "corpus": (tmp_path / "text.txt",),
        "output": run,
        "config": run / "architecture.json",
        "vocab": tmp_path / "vocab.txt",
        "recipe": "original",
        "learning_rate": 0.2,
        "epochs": 2,
        "max_words": None,
        "batch_size": 4,  # 2 on each GPU
        "unroll_steps": 5,
        "num_samples": 4,
        "dropout": 0.1,
        "dtype": "float32",
        "tokenize": False,
    }
    assert runs == [PretrainConfig(**expected | settings)]


def test_another_norm_of_gradients_is_ignored_with_a_warning(
    data: BidirectionalLMDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bilm, "pretrain", lambda settings: None)
    with pytest.warns(UserWarning, match="^all_clip_norm_val is ignored: the norm of gradients is clipped to 10$"):
        bilm.train({**OPTIONS, "all_clip_norm_val": 5.0}, data, 1, tmp_path / "run", tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bidirectional": False}, r"set options\['bidirectional'\] = True"),
        ({"share_embedding_softmax": True}, r"remove options\['share_embedding_softmax'\]"),
    ],
)
def test_options_that_the_trainer_lacks_are_refused(
    changes: dict[str, Any], message: str, data: BidirectionalLMDataset, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        bilm.train({**OPTIONS, **changes}, data, 1, tmp_path / "run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_that_are_missing_are_named(data: BidirectionalLMDataset, tmp_path: Path) -> None:
    options = {name: value for name, value in OPTIONS.items() if name not in ("n_epochs", "unroll_steps")}
    with pytest.raises(ValueError, match="the options lack n_epochs and unroll_steps"):
        bilm.train(options, data, 1, tmp_path / "run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_tensorflow_is_not_resumed(
    goldens: Callable[[str], Path], data: BidirectionalLMDataset, tmp_path: Path
) -> None:
    shutil.copytree(goldens("bilm_tf_training/tf_checkpoint"), tmp_path / "run")
    options, checkpoint = bilm.load_options_latest_checkpoint(tmp_path / "run")
    assert options["bidirectional"] and checkpoint.endswith("model.ckpt-124")
    with pytest.raises(ValueError, match="cannot resume: convert it"):
        bilm.train(OPTIONS, data, 1, tmp_path / "run", tmp_path / "run", checkpoint)


def test_a_directory_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        bilm.load_options_latest_checkpoint(tmp_path)


def test_another_vocabulary_is_an_error(data: BidirectionalLMDataset, language_model: Path) -> None:
    with pytest.raises(ValueError, match="is not the vocabulary of"):
        bilm.test(OPTIONS, language_model, data)
