"""bilm-tf's functions of training: against bilm-tf's own perplexity, and from options to weights
that load.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.checkpoints.loading import load
from elmokit.compat.bilm_tf import Batcher, BidirectionalLanguageModel
from elmokit.compat.bilm_tf import training as bilm
from elmokit.compat.bilm_tf.data import BidirectionalLMDataset
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
    return BidirectionalLMDataset(
        str(tmp_path / "text.txt"), bilm.load_vocab(tmp_path / "vocab.txt", 12)
    )


def test_perplexity_equals_that_of_bilm_tf(goldens: Callable[[str], Path]) -> None:
    heldout = goldens("bilm_tf_training/heldout.txt")
    options, checkpoint = bilm.load_options_latest_checkpoint(
        goldens("bilm_tf_training/tf_checkpoint")
    )
    vocab = bilm.load_vocab(
        heldout.with_name("vocab.txt"), options["char_cnn"]["max_characters_per_token"]
    )
    data = BidirectionalLMDataset(str(heldout), vocab, test=True)
    expected = json.loads(heldout.with_name("expected.json").read_text())
    found = bilm.test(options, checkpoint, data, batch_size=1)
    assert found == pytest.approx(expected["perplexity_batch_1"], rel=1e-6)


@pytest.mark.slow
def test_training_writes_a_model_whose_weights_load(
    data: BidirectionalLMDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    bilm.train(OPTIONS, data, 2, run, run)
    options, checkpoint = bilm.load_options_latest_checkpoint(run)
    assert options == OPTIONS
    assert Path(checkpoint) == run / "model"
    model = load(checkpoint)
    assert model.vocab.words == tuple(WORDS)
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
    usual = {"learning_rate": 0.2, "epochs": 2, "batch_size": 4, "num_samples": 4, "dropout": 0.1}
    (found,) = runs
    for name, value in (usual | settings).items():  # batch_size is 2 on each of two GPUs
        assert getattr(found, name) == value


@pytest.mark.parametrize("changes", [{"bidirectional": False}, {"share_embedding_softmax": True}])
def test_options_that_the_trainer_lacks_are_refused(
    changes: dict[str, Any], data: BidirectionalLMDataset, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        bilm.train({**OPTIONS, **changes}, data, 1, tmp_path / "run", tmp_path / "run")
    assert not (tmp_path / "run").exists()
