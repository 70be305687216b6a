"""bilm-tf's `train`, `test` and `dump_weights` (bilm/training.py), on elmokit's own trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from elmokit.checkpoints.detect import find_prefix
from elmokit.checkpoints.formats.bilm_hdf5 import arrays_of
from elmokit.checkpoints.formats.bilm_options import config_from_options
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.native import filled
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.compat.bilm_tf.data import BidirectionalLMDataset, LMDataset, UnicodeCharsVocabulary, Vocabulary
from elmokit.compat.notice import warn_once
from elmokit.config import BiLMConfig
from elmokit.fs.atomic import write_json
from elmokit.fs.hdf5 import atomic_hdf5
from elmokit.fs.json_files import read_json
from elmokit.lm.evaluate import evaluate
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.pretrain import pretrain
from elmokit.train.snapshots import PROGRESS, TENSORS, latest_snapshot, read_snapshot

OPTIONS, ARCHITECTURE, MODEL, CHECKPOINTS = "options.json", "architecture.json", "model", "checkpoints"
CLIP_NORM = 10.0  # of the recipe "original"
Data = LMDataset | BidirectionalLMDataset


def load_vocab(vocab_file: str | Path, max_word_length: int | None = None) -> Vocabulary:
    """Read a vocabulary with <S>, </S> and <UNK>; with `max_word_length`, one that gives characters, too."""
    if max_word_length is None:
        return Vocabulary(vocab_file, validate_file=True)
    return UnicodeCharsVocabulary(vocab_file, max_word_length, validate_file=True)


def load_options_latest_checkpoint(tf_save_dir: str | Path) -> tuple[dict[str, Any], str]:
    """Find what `train`, or bilm-tf itself, wrote to a directory.

    Returns:
        The options, and the path of the trained model, or of a checkpoint if that is newer, as during training. `test`
        and `dump_weights` read either.

    Raises:
        FileNotFoundError: There are no options, or there is no checkpoint.
    """
    directory = Path(tf_save_dir)
    options = read_json(directory / OPTIONS)
    snapshot, weights = latest_snapshot(directory / CHECKPOINTS), directory / MODEL / "model.safetensors"
    # A run writes its model after its last checkpoint, so a newer checkpoint comes from a run that was continued.
    if weights.is_file() and (snapshot is None or _time(weights) >= _time(snapshot / TENSORS)):
        return options, str(directory / MODEL)
    checkpoint = snapshot or find_prefix(directory)
    if checkpoint is None:
        raise FileNotFoundError(f"{directory} has no checkpoint: train a model there first")
    return options, str(checkpoint)


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns


def _load(checkpoint: str | Path, data: Data | None = None) -> Pretrained:
    """Load the model at a path from `load_options_latest_checkpoint`; with `data`, its softmax and vocabulary, too.

    Raises:
        ValueError: The model's vocabulary is not that of the data, or a checkpoint is damaged.
    """
    path, words = Path(checkpoint), None
    if data is not None:
        words = Vocab(map(data.vocab.id_to_word, range(data.vocab.size)))
    if (path / PROGRESS).is_file():
        snapshot = read_snapshot(path)
        run, softmax = snapshot.progress["run"], snapshot.with_prefix("softmax")
        model = Pretrained(
            filled(lambda: BiLM(BiLMConfig.from_dict(run["model"])), snapshot.with_prefix("bilm")),
            softmax=filled(lambda: FullSoftmax(*softmax["weight"].shape), softmax),
        )
        # A checkpoint has only the checksum of its vocabulary, which the trainer compares, too.
        is_same = words is None or run["vocabulary"] == words.checksum()
    else:
        model = load(checkpoint, softmax=words is not None)
        is_same = words is None or model.vocab in (None, words)
    if data is not None and not is_same:
        raise ValueError(
            f"{data.vocab.filename} is not the vocabulary of {checkpoint}: give the one it was trained with"
        )
    return model if words is None else replace(model, vocab=words)


def _settings(options: Mapping[str, Any], data: Data, rows: int, directory: Path) -> PretrainConfig:
    """Translate bilm-tf's options into settings of elmokit's trainer."""
    epochs, tokens = options["n_epochs"], options.get("n_train_tokens")
    samples = options.get("n_negative_samples_batch") if options.get("sample_softmax", True) else None
    return PretrainConfig(
        corpus=tuple(data.files),
        output=directory,
        config=directory / ARCHITECTURE,
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
    """ValueError for options that are missing, or that elmokit's trainer does not support."""
    if missing := [name for name in ("n_epochs", "batch_size", "unroll_steps") if name not in options]:
        raise ValueError(f"the options lack {' and '.join(missing)}: set options['{missing[0]}']")
    if not options.get("bidirectional"):
        raise ValueError("elmokit trains both directions: set options['bidirectional'] = True")
    if options.get("share_embedding_softmax"):
        raise ValueError("elmokit's softmax has weights of its own: remove options['share_embedding_softmax']")
    if options.get("all_clip_norm_val", CLIP_NORM) != CLIP_NORM:
        warn_once(f"all_clip_norm_val is ignored: the norm of gradients is clipped to {CLIP_NORM:g}")
    if restart_ckpt_file is not None and Path(f"{restart_ckpt_file}.index").is_file():
        raise ValueError(
            f"{restart_ckpt_file} is a TensorFlow checkpoint, whose training elmokit cannot resume: convert it "
            "with `elmokit convert`, and train it further with `elmokit finetune`"
        )


def _check_architecture(directory: Path, config: BiLMConfig) -> None:
    """ValueError if a directory has a checkpoint or model with another architecture."""
    if not (latest_snapshot(directory / CHECKPOINTS) or directory / MODEL).is_dir():
        return
    try:
        trained = BiLMConfig.from_dict(read_json(directory / ARCHITECTURE)["model"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return  # missing or damaged; the trainer itself compares checkpoints
    if trained != config:
        raise ValueError(
            f"{directory} has a run of another architecture, that of {directory / ARCHITECTURE}: train with the "
            "options of that run to resume it, or choose another directory"
        )


def train(
    options: Mapping[str, Any],
    data: Data,
    n_gpus: int,
    tf_save_dir: str | Path,
    tf_log_dir: str | Path,
    restart_ckpt_file: str | Path | None = None,
) -> None:
    """Train a biLM as bilm-tf does, on one device. A run that was interrupted, or has more epochs now, is continued.

    Args:
        options: bilm-tf's options, with the architecture of the model. Training ends after `n_epochs` passes over the
            files, or after `n_epochs` times `n_train_tokens` words if these are fewer.
        data: The text. The rows of all GPUs are computed in one batch.
        n_gpus: Multiplies `batch_size`.
        tf_save_dir: Directory for the options, the checkpoints and the model.
        tf_log_dir: Ignored: the log is in `tf_save_dir`.
        restart_ckpt_file: Ignored, unless it is TensorFlow's: a run is resumed from `tf_save_dir`.

    Raises:
        ValueError: The options ask for a single direction or a shared softmax, or lack a part of the architecture,
            `n_epochs`, `batch_size` or `unroll_steps`; the checkpoint is TensorFlow's; or the directory has a run of
            another architecture.
    """
    _check(options, restart_ckpt_file)
    directory = Path(tf_save_dir)
    config = config_from_options(dict(options), data.vocab.size)
    settings = _settings(options, data, options["batch_size"] * max(1, n_gpus), directory)
    _check_architecture(directory, config)
    write_json(directory / OPTIONS, dict(options))
    write_json(directory / ARCHITECTURE, {"model": config.to_dict()})
    print(pretrain(settings))


def test(options: Mapping[str, Any], ckpt_file: str | Path, data: Data, batch_size: int = 256) -> float:
    """The perplexity of a text, the mean of both directions, over all its sentences.

    Args:
        options: Ignored: the model has its own.
        ckpt_file: The model or checkpoint, as found by `load_options_latest_checkpoint`.
        data: The text, with the vocabulary of the model.
        batch_size: Number of rows, each of which carries its state from sentence to sentence.

    Raises:
        ValueError: The text has another vocabulary.
    """
    model = _load(ckpt_file, data)
    total = evaluate(data.files, model, batch_size=batch_size, tokenize=False).total
    if total.truncated:
        limit = model.bilm.token_encoder.word_limit
        warn_once(f"some words have more than {limit}: as in bilm-tf, only the first {limit} are read")
    print(f"FINISHED! AVERAGE PERPLEXITY = {total.value}")
    return total.value


test.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest


def dump_weights(tf_save_dir: str | Path, outfile: str | Path) -> None:
    """Write the weights of the model in a directory to an HDF5 file that bilm-tf and AllenNLP read."""
    _, checkpoint = load_options_latest_checkpoint(tf_save_dir)
    with atomic_hdf5(outfile) as file:
        for name, array in arrays_of(_load(checkpoint).bilm).items():
            file.create_dataset(name, data=array)
