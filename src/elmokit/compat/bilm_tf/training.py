"""bilm-tf's `train`, `test` and `dump_weights` (bilm/training.py), on elmokit's own trainer."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import move
from tempfile import TemporaryDirectory
from typing import Any

from elmokit.checkpoints import convert, load
from elmokit.compat.bilm_tf.data import (
    BidirectionalLMDataset,
    LMDataset,
    UnicodeCharsVocabulary,
    Vocabulary,
)
from elmokit.config import BiLMConfig
from elmokit.fs import read_json, write_lines
from elmokit.lm import evaluate
from elmokit.text import Vocab
from elmokit.train import PretrainConfig, pretrain

OPTIONS, ARCHITECTURE, MODEL = "options.json", "architecture.json", "model"
Data = LMDataset | BidirectionalLMDataset


def load_vocab(vocab_file: str | Path, max_word_length: int | None = None) -> Vocabulary:
    """Read a vocabulary with <S>, </S> and <UNK>; `max_word_length`: also of characters."""
    if max_word_length is None:
        return Vocabulary(vocab_file, validate_file=True)
    return UnicodeCharsVocabulary(vocab_file, max_word_length, validate_file=True)


def load_options_latest_checkpoint(tf_save_dir: str | Path) -> tuple[dict[str, Any], str]:
    """The options, and the path of the model, that `train` or bilm-tf itself wrote to a directory.

    `test` and `dump_weights` read the model; as long as a run of `train` goes on, there is none.
    """
    directory = Path(tf_save_dir)
    model = directory / MODEL if (directory / ARCHITECTURE).exists() else directory
    return read_json(directory / OPTIONS), str(model)


def train(
    options: Mapping[str, Any],
    data: Data,
    n_gpus: int,
    tf_save_dir: str | Path,
    tf_log_dir: str | Path,
    restart_ckpt_file: str | Path | None = None,
) -> None:
    """Train a biLM as bilm-tf does, on one device; continue a run that was interrupted.

    Args:
        options: bilm-tf's options, with the architecture of the model. Training ends after
            `n_epochs` passes over the files, or after `n_epochs` times `n_train_tokens` words if
            these are fewer.
        data: The text. The rows of all GPUs are computed in one batch.
        n_gpus: Multiplies `batch_size`.
        tf_save_dir: Directory for the options, the checkpoints and the model.
        tf_log_dir: Ignored: the log is in `tf_save_dir`.
        restart_ckpt_file: Ignored: a run is resumed from `tf_save_dir`.

    Raises:
        ValueError: The options ask for a single direction or a shared softmax, or the checkpoint is
            TensorFlow's.
        KeyError: The options lack `n_epochs`, `batch_size` or `unroll_steps`.
    """
    is_of_tensorflow = (
        restart_ckpt_file is not None and Path(f"{restart_ckpt_file}.index").is_file()
    )
    if (
        is_of_tensorflow
        or not options.get("bidirectional")
        or options.get("share_embedding_softmax")
    ):
        raise ValueError(
            "elmokit trains both directions, with a softmax of its own: set "
            "options['bidirectional'], remove 'share_embedding_softmax', and train TensorFlow's "
            "checkpoints further with `elmokit finetune`"
        )
    directory, epochs, tokens = (
        Path(tf_save_dir),
        options["n_epochs"],
        options.get("n_train_tokens"),
    )
    samples = (
        options.get("n_negative_samples_batch") if options.get("sample_softmax", True) else None
    )
    settings = PretrainConfig(
        corpus=tuple(data.files),
        output=directory,
        config=directory / ARCHITECTURE,
        vocab=data.vocab.filename,
        recipe="original",
        learning_rate=options.get("learning_rate", 0.2),
        epochs=epochs,
        max_words=None if tokens is None else int(epochs * tokens),
        batch_size=options["batch_size"] * max(1, n_gpus),
        unroll_steps=options["unroll_steps"],
        num_samples=samples or 0,
        dropout=options.get("dropout") or 0.0,
        dtype="float32",
        tokenize=False,
    )
    config = BiLMConfig.from_options(dict(options), data.vocab.size)
    write_lines(directory / OPTIONS, [json.dumps(dict(options))])
    write_lines(directory / ARCHITECTURE, [json.dumps({"model": config.to_dict()})])
    print(pretrain(settings))


def test(
    options: Mapping[str, Any], ckpt_file: str | Path, data: Data, batch_size: int = 256
) -> float:
    """The perplexity of a text, the mean of both directions, over all its sentences.

    Args:
        options: Ignored: the model has its own.
        ckpt_file: The model, as found by `load_options_latest_checkpoint`.
        data: The text, with the vocabulary of the model.
        batch_size: Number of rows, each of which carries its state from sentence to sentence.

    Raises:
        ValueError: The text has another vocabulary.
    """
    model, vocab = load(ckpt_file), Vocab(data.vocab.words)
    if model.vocab not in (None, vocab):
        raise ValueError(
            f"{data.vocab.filename} is not the vocabulary of {ckpt_file}: give the one of its "
            f"training"
        )
    value = evaluate(
        data.files, replace(model, vocab=vocab), batch_size=batch_size, tokenize=False
    ).total.value
    print(f"FINISHED! AVERAGE PERPLEXITY = {value}")
    return value


test.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest


def dump_weights(tf_save_dir: str | Path, outfile: str | Path) -> None:
    """Write the weights of a directory's model to an HDF5 file for bilm-tf and AllenNLP."""
    _, checkpoint = load_options_latest_checkpoint(tf_save_dir)
    parent = Path(outfile).absolute().parent
    with TemporaryDirectory(dir=parent) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all but the weights is left out
        convert(checkpoint, Path(folder, MODEL), to="hdf5")
        move(Path(folder, MODEL, "weights.hdf5"), outfile)
