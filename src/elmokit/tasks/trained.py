"""A trained tagger, and its directory:

config.json          format_version, the settings, tags, tag column, and the biLM (name or path, fingerprint)
tagger.safetensors   the weights, without those of the biLM
words.txt            the words of the training set, one per line
bilm/                the biLM itself, if it was fine-tuned with the tagger or loaded from memory
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.checkpoints import loading
from elmokit.checkpoints.errors import check_shapes
from elmokit.checkpoints.loading import CheckpointError, Pretrained, fingerprint
from elmokit.data.readers import TaggedSentence
from elmokit.data.streams import sentence_batches
from elmokit.embed.embedder import Embedder
from elmokit.fs.atomic import atomic_directory
from elmokit.fs.reading import read_lines
from elmokit.nn.bilm import BiLM
from elmokit.nn.crf import span_transitions
from elmokit.nn.elmo import Elmo
from elmokit.runtime import pick_device
from elmokit.tasks.config import TaggerConfig
from elmokit.tasks.examples import Examples, TaskVocab
from elmokit.tasks.tagger import CHAR_CNN, Tagger

FORMAT_VERSION = 1
OWN_BILM = "bilm"  # the subdirectory of a biLM that is saved with the tagger
BILM_PREFIX = "elmo.bilm."  # of the names of its weights in the tagger
SETTINGS = {"format_version", "tagger", "tags", "num_frequent", "scheme", "tag_column", "bilm", "bilm_fingerprint"}
BATCH_WORDS = 32_768  # words to embed at a time; their layers are kept in float16


def build_tagger(config: TaggerConfig, vocab: TaskVocab, bilm: BiLM | None) -> Tagger:
    """Create an untrained tagger for the words and tags of a vocabulary."""
    elmo = None
    if config.elmo:
        if bilm is None:
            raise ValueError("elmo is set but there is no pretrained model: give one, or unset elmo")
        num_mixes = 2 if config.elmo_at_output else 1
        elmo = Elmo(bilm, num_mixes, config.elmo_dropout, freeze=not config.finetune)
    restricted = config.crf and vocab.scheme in ("IOB2", "BIOES")
    return Tagger(
        config,
        num_words=vocab.num_words,
        num_frequent=vocab.num_frequent,
        num_tags=len(vocab.tags),
        elmo=elmo,
        allowed=span_transitions(vocab.tags) if restricted else None,
    )


def embed_layers(model: Pretrained, sentences: Sequence[TaggedSentence], device: str | None = None) -> Tensor:
    """All layers of all tokens, concatenated, (N, L+1, 2D) float16."""
    embedder = Embedder(model, device=device)
    vectors = [torch.empty(0, model.config.num_representations, model.config.output_dim, dtype=torch.float16)]
    for words in sentence_batches((sentence.words for sentence in sentences), BATCH_WORDS):
        vectors += [torch.from_numpy(layers).half().transpose(0, 1) for layers in embedder.embed(words, layers="all")]
    return torch.cat(vectors)


def make_examples(
    sentences: Sequence[TaggedSentence],
    vocab: TaskVocab,
    config: TaggerConfig,
    model: Pretrained | None = None,
    device: str | None = None,
) -> Examples:
    """Encode sentences for a tagger with these settings, and compute the layers of a frozen biLM."""
    character_cnns = [CHAR_CNN] if config.character_dim else []
    if model is None:
        return Examples(sentences, vocab, character_cnns=character_cnns)
    if not config.finetune:
        return Examples(sentences, vocab, embed_layers(model, sentences, device), character_cnns)
    if model.config.char_cnn is None:
        raise ValueError("a biLM with word-id input cannot be fine-tuned with a tagger: unset finetune")
    return Examples(sentences, vocab, character_cnns=[model.config.char_cnn, *character_cnns])


def tag_examples(tagger: Tagger, examples: Examples, batch_size: int = 64) -> list[tuple[str, ...]]:
    """Predict the tags of all sentences, in the order of the examples."""
    device = next(tagger.parameters()).device
    tags: list[tuple[str, ...]] = [()] * len(examples)
    tagger.eval()
    for indices in examples.by_length(batch_size):
        decoded = tagger.decode(examples.batch(indices).to(device)).tolist()
        for index, row in zip(indices, decoded, strict=True):
            tags[index] = tuple(examples.vocab.tags[tag] for tag in row[: examples.lengths[index]])
    return tags


class TrainedTagger:
    """A trained tagger with its vocabulary and the pretrained model that it reads (None without ELMo)."""

    def __init__(
        self, tagger: Tagger, vocab: TaskVocab, model: Pretrained | None = None, tag_column: str | int | None = None
    ) -> None:
        self.tagger, self.vocab, self.model, self.tag_column = tagger, vocab, model, tag_column

    def predict(self, sentences: Sequence[Sequence[str]], batch_size: int = 64) -> list[tuple[str, ...]]:
        """Tag sentences.

        Args:
            sentences: Lists of words.
            batch_size: Sentences per batch; it does not change the result.

        Returns:
            The tags of each sentence.

        Raises:
            ValueError: A sentence is a string.
        """
        if any(isinstance(sentence, str) for sentence in sentences):
            raise ValueError("a sentence must be a list of words: split the text first, e.g. with Embedder.tokenize")
        untagged = [TaggedSentence(tuple(words)) for words in sentences]
        device = str(next(self.tagger.parameters()).device)
        examples = make_examples(untagged, self.vocab, self.tagger.config, self.model, device)
        return tag_examples(self.tagger, examples, batch_size)

    def save(
        self,
        directory: str | Path,
        bilm: str | None = None,
        overwrite: bool = False,
        more_files: Mapping[str, str] | None = None,
    ) -> None:
        """Write the tagger's directory atomically.

        Args:
            directory: The directory.
            bilm: Name or path from which the frozen biLM can be loaded again; by default the biLM is saved, too.
            overwrite: Replace an existing directory.
            more_files: Additional text files, by name.

        Raises:
            FileExistsError: The directory exists, and `overwrite` is not set.
        """
        keep_inside = self.model is not None and (bilm is None or self.tagger.config.finetune)
        with atomic_directory(directory, overwrite=overwrite) as partial:
            if self.model is not None and keep_inside:
                # A biLM that was trained further no longer fits its softmax.
                loading.save(replace(self.model, softmax=None), partial / OWN_BILM)
            save_file(self._own_weights(), partial / "tagger.safetensors")
            (partial / "words.txt").write_text("".join(f"{word}\n" for word in self.vocab.words), encoding="utf-8")
            description = self._description(OWN_BILM if keep_inside else bilm)
            texts = {"config.json": json.dumps(description, indent=2) + "\n", **(more_files or {})}
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")

    def _own_weights(self) -> dict[str, Tensor]:
        weights = self.tagger.state_dict()
        return {name: value.contiguous() for name, value in weights.items() if not name.startswith(BILM_PREFIX)}

    def _description(self, bilm: str | None) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "tagger": asdict(self.tagger.config),
            "tags": self.vocab.tags,
            "num_frequent": self.vocab.num_frequent,
            "scheme": self.vocab.scheme,
            "tag_column": self.tag_column,
            "bilm": None if self.model is None else bilm,
            "bilm_fingerprint": None if self.model is None else fingerprint(self.model),
        }


def _read_settings(path: Path) -> tuple[TaggerConfig, dict[str, Any]]:
    """The tagger's configuration, and all values of config.json."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format_version"] != FORMAT_VERSION:
            version = f"its format_version is {values['format_version']}, this version reads {FORMAT_VERSION}"
            raise ValueError(f"{version}: upgrade elmokit")
        known = {field.name for field in fields(TaggerConfig)}
        if wrong := sorted(SETTINGS ^ set(values)) + sorted(known ^ set(values["tagger"])):
            raise ValueError(f"missing or unknown settings {', '.join(wrong)}")
        return TaggerConfig(**values["tagger"]), values
    except (ValueError, TypeError, KeyError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path} is not the configuration of an elmokit tagger: {reason}") from error


def load_task_model(
    directory: str | Path, model: loading.ModelSource = None, device: str | None = None
) -> TrainedTagger:
    """Load a trained tagger.

    Args:
        directory: The tagger's directory.
        model: The biLM, loaded or as `elmokit.load` accepts it, if it is no longer at its recorded path.
        device: Device to compute on; a GPU by default if there is one.

    Returns:
        The tagger.

    Raises:
        FileNotFoundError: The tagger or its biLM does not exist.
        CheckpointError: A file is damaged, or `model` is not the biLM that the tagger was trained on.
        ValueError: `model` is given although the tagger has its own biLM or none.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} is not a tagger: it has no config.json")
    config, description = _read_settings(directory / "config.json")
    if model is not None and not config.elmo:
        raise ValueError(f"the tagger in {directory} has no biLM: omit the model")
    words, tags = tuple(read_lines(directory / "words.txt")), tuple(description["tags"])
    vocab = TaskVocab(words, tags, description["num_frequent"], description["scheme"])
    pretrained = _load_bilm(directory, description, model) if config.elmo else None
    tagger = build_tagger(config, vocab, pretrained.bilm if pretrained else None)
    _load_weights(tagger, directory / "tagger.safetensors")
    return TrainedTagger(tagger.to(pick_device(device)).eval(), vocab, pretrained, description["tag_column"])


def _load_bilm(directory: Path, description: dict[str, Any], override: loading.ModelSource) -> Pretrained:
    has_own = description["bilm"] == OWN_BILM and (directory / OWN_BILM).is_dir()
    if has_own and override is not None:
        raise ValueError(f"the tagger has its own biLM in {directory / OWN_BILM}: omit the model")
    name = str(directory / OWN_BILM) if has_own else override or description["bilm"]
    try:
        pretrained = loading.resolve_model(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"the biLM of {directory} is missing: {error}; give its path as model") from error
    if fingerprint(pretrained) != description["bilm_fingerprint"]:
        raise CheckpointError(f"{name} is not the biLM that {directory} was trained on: its weights or settings differ")
    return pretrained


def _load_weights(tagger: Tagger, path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a valid safetensors file ({error}): fit the tagger again") from error
    expected = {name: value for name, value in tagger.state_dict().items() if not name.startswith(BILM_PREFIX)}
    shapes = [{name: tuple(value.shape) for name, value in tensors.items()} for tensors in (expected, weights)]
    check_shapes(path, *shapes)
    tagger.load_state_dict(weights, strict=False)  # the weights of the biLM are already loaded
