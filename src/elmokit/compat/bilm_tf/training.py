"""bilm-tf's `train`, `test` and `dump_weights` (bilm/training.py), on elmokit's own trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from elmokit.checkpoints.detect import find_prefix
from elmokit.checkpoints.formats.bilm_hdf5 import arrays_of
from elmokit.checkpoints.formats.bilm_options import config_from_options
from elmokit.checkpoints.loading import load
from elmokit.compat.bilm_tf.data import BidirectionalLMDataset, LMDataset, UnicodeCharsVocabulary, Vocabulary
from elmokit.compat.notice import warn_once
from elmokit.fs.hdf5 import atomic_hdf5
from elmokit.fs.json_files import read_json
from elmokit.lm.evaluate import evaluate
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.pretrain import pretrain
from elmokit.train.snapshots import latest_snapshot

OPTIONS, MODEL, CHECKPOINTS = "options.json", "model", "checkpoints"
CLIP_NORM = 10.0  # of the recipe "original"
Data = LMDataset | BidirectionalLMDataset


def load_vocab(vocab_file: str | Path, max_word_length: int | None = None) -> Vocabulary:
    """Read a vocabulary, which must have <S>, </S> and <UNK>; with `max_word_length`, of characters too."""
    if max_word_length is None:
        return Vocabulary(vocab_file, validate_file=True)
    return UnicodeCharsVocabulary(vocab_file, max_word_length, validate_file=True)


def load_options_latest_checkpoint(tf_save_dir: str | Path) -> tuple[dict[str, Any], str]:
    """Find what `train` wrote to a directory, or bilm-tf itself.

    Returns:
        The options, and the path of the trained model; of the latest checkpoint where training has not ended.

    Raises:
        FileNotFoundError: There are no options, or there is no checkpoint.
    """
    directory = Path(tf_save_dir)
    options = read_json(directory / OPTIONS)
    if (directory / MODEL / "config.json").is_file():
        return options, str(directory / MODEL)
    checkpoint = latest_snapshot(directory / CHECKPOINTS) or find_prefix(directory)
    if checkpoint is None:
        raise FileNotFoundError(f"{directory} has no checkpoint: train a model there first")
    return options, str(checkpoint)


def _settings(options: Mapping[str, Any], data: Data, rows: int, directory: Path, config: Path) -> PretrainConfig:
    """The settings of our trainer that say what the options say."""
    epochs, tokens = options["n_epochs"], options.get("n_train_tokens")
    samples = options.get("n_negative_samples_batch") if options.get("sample_softmax", True) else None
    return PretrainConfig(
        corpus=tuple(data.files),
        output=directory,
        config=config,
        vocab=data.vocab.filename,
        recipe="original",
        learning_rate=options.get("learning_rate", 0.2),
        epochs=epochs,
        max_words=None if tokens is None else int(epochs * tokens),
        batch_size=rows,
        unroll_steps=options["unroll_steps"],
        num_samples=samples or 0,
        dropout=options.get("dropout") or 0.0,
        dtype="float32",
        tokenize=False,
    )


def _check(options: Mapping[str, Any], restart_ckpt_file: str | Path | None) -> None:
    """ValueError for options that elmokit's trainer does not have."""
    if not options.get("bidirectional"):
        raise ValueError("elmokit trains both directions: set options['bidirectional'] = True")
    if options.get("share_embedding_softmax"):
        raise ValueError("elmokit's softmax has weights of its own: remove options['share_embedding_softmax']")
    if options.get("all_clip_norm_val", CLIP_NORM) != CLIP_NORM:
        warn_once(f"all_clip_norm_val is ignored: the norm of gradients is clipped to {CLIP_NORM:g}")
    if restart_ckpt_file is not None and Path(f"{restart_ckpt_file}.index").is_file():
        raise ValueError(
            f"{restart_ckpt_file} is TensorFlow's, whose training elmokit cannot resume: convert it with "
            "`elmokit convert`, and train it further with `elmokit finetune`"
        )


def train(
    options: Mapping[str, Any],
    data: Data,
    n_gpus: int,
    tf_save_dir: str | Path,
    tf_log_dir: str | Path,
    restart_ckpt_file: str | Path | None = None,
) -> None:
    """Train a biLM as bilm-tf does, on one device; what was interrupted, or has more epochs now, goes on.

    Args:
        options: bilm-tf's, with the architecture of the model. Training ends after `n_epochs` passes over the files, or
            `n_epochs` times `n_train_tokens` words if these are fewer.
        data: The text, of which all rows of all GPUs are computed in one batch.
        n_gpus: Multiplies `batch_size`.
        tf_save_dir: Directory for the options, the checkpoints and the model.
        tf_log_dir: Ignored: the log is in `tf_save_dir`.
        restart_ckpt_file: Ignored, as `tf_save_dir` is known.

    Raises:
        ValueError: The options ask for one direction or for a shared softmax, or the checkpoint is TensorFlow's.
    """
    _check(options, restart_ckpt_file)
    directory = Path(tf_save_dir)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / OPTIONS).write_text(json.dumps(options), encoding="utf-8")
    config = directory / "architecture.json"
    architecture = config_from_options(dict(options), data.vocab.size).to_dict()
    config.write_text(json.dumps({"model": architecture}, indent=2), encoding="utf-8")
    rows = options["batch_size"] * max(1, n_gpus)
    print(pretrain(_settings(options, data, rows, directory, config)))


def test(options: Mapping[str, Any], ckpt_file: str | Path, data: Data, batch_size: int = 256) -> float:
    """The perplexity of a text, the mean of both directions; every sentence counts.

    Args:
        options: Ignored: the model knows its own.
        ckpt_file: The model, as `load_options_latest_checkpoint` finds it.
        data: The text, with the vocabulary of the model.
        batch_size: Rows, each of which carries its state from sentence to sentence.

    Raises:
        ValueError: The text has another vocabulary.
    """
    model, words = load(ckpt_file), Vocab(map(data.vocab.id_to_word, range(data.vocab.size)))
    if model.vocab is not None and model.vocab != words:
        raise ValueError(f"{data.vocab.filename} is not the vocabulary of {ckpt_file}: give that one")
    perplexity = evaluate(data.files, replace(model, vocab=words), batch_size=batch_size, tokenize=False).total.value
    print(f"FINISHED! AVERAGE PERPLEXITY = {perplexity}")
    return perplexity


test.__test__ = False  # type: ignore[attr-defined]  # it is no test of pytest's


def dump_weights(tf_save_dir: str | Path, outfile: str | Path) -> None:
    """Write the weights of the model in a directory to an HDF5 file, as bilm-tf and AllenNLP read them."""
    _, checkpoint = load_options_latest_checkpoint(tf_save_dir)
    with atomic_hdf5(outfile) as file:
        for name, array in arrays_of(load(checkpoint, softmax=False).bilm).items():
            file.create_dataset(name, data=array)
