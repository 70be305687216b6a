"""A trained tagger: it tags sentences, and is kept as a directory.

config.json          format_version, the settings, tags, tag column, and which biLM it reads (name or path, fingerprint)
tagger.safetensors   the weights, without the biLM's
words.txt            the words of its training set, one a line
bilm/                the biLM itself, where it was trained along with the tagger or had no name
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
from elmokit.data.streams import blocks_of
from elmokit.embed.embedder import Embedder
from elmokit.fs.atomic import atomic_directory
from elmokit.fs.reading import read_lines
from elmokit.nn.bilm import BiLM
from elmokit.nn.crf import span_transitions
from elmokit.nn.elmo import Elmo
from elmokit.runtime import pick_device
from elmokit.tasks.config import TaggerConfig
from elmokit.tasks.examples import Examples, Lexicon
from elmokit.tasks.tagger import CHARACTERS, Tagger

FORMAT_VERSION = 1
OWN_BILM = "bilm"  # the directory of a biLM that is kept with the tagger
OF_BILM = "elmo.bilm."  # what the names of its weights begin with
SETTINGS = {"format_version", "tagger", "tags", "num_frequent", "scheme", "tag_column", "bilm", "bilm_fingerprint"}
# About so many words at a time go through the biLM before their layers are kept in half the precision, half the memory.
WORDS_AT_ONCE = 32_768


def build_tagger(config: TaggerConfig, lexicon: Lexicon, bilm: BiLM | None) -> Tagger:
    """An untrained tagger for the words and tags of a lexicon."""
    elmo = None
    if config.elmo:
        if bilm is None:
            raise ValueError("the settings ask for ELMo: give a pretrained model, or switch elmo off")
        num_mixes = 2 if config.elmo_at_output else 1
        elmo = Elmo(bilm, num_mixes, config.elmo_dropout, freeze=not config.finetune)
    restricted = config.crf and lexicon.scheme in ("IOB2", "BIOES")
    return Tagger(
        config,
        num_words=lexicon.num_words,
        num_frequent=lexicon.num_frequent,
        num_tags=len(lexicon.tags),
        elmo=elmo,
        allowed=span_transitions(lexicon.tags) if restricted else None,
    )


def embed_layers(model: Pretrained, sentences: Sequence[TaggedSentence], device: str | None = None) -> Tensor:
    """The biLM's layers of all tokens, end to end, (N, L+1, 2D) in half precision."""
    embedder = Embedder(model, device=device)
    parts = [torch.empty(0, model.config.num_representations, model.config.output_dim, dtype=torch.float16)]
    for words in blocks_of((sentence.words for sentence in sentences), WORDS_AT_ONCE):
        parts += [torch.from_numpy(layers).half().transpose(0, 1) for layers in embedder.embed(words, layers="all")]
    return torch.cat(parts)


def make_examples(
    sentences: Sequence[TaggedSentence],
    lexicon: Lexicon,
    config: TaggerConfig,
    model: Pretrained | None = None,
    device: str | None = None,
) -> Examples:
    """Sentences as a tagger of these settings reads them; the layers of a frozen biLM are computed here."""
    character_cnns = [CHARACTERS] if config.character_dim else []
    if model is None:
        return Examples(sentences, lexicon, character_cnns=character_cnns)
    if not config.finetune:
        return Examples(sentences, lexicon, embed_layers(model, sentences, device), character_cnns)
    if model.config.char_cnn is None:
        raise ValueError("a biLM over word ids cannot be fine-tuned with a tagger: leave finetune off")
    return Examples(sentences, lexicon, character_cnns=[model.config.char_cnn, *character_cnns])


def tag_examples(tagger: Tagger, examples: Examples, batch_size: int = 64) -> list[tuple[str, ...]]:
    """The predicted tags of every sentence, in the order of the examples."""
    device = next(tagger.parameters()).device
    tags: list[tuple[str, ...]] = [()] * len(examples)
    tagger.eval()
    for chosen in examples.by_length(batch_size):
        decoded = tagger.decode(examples.batch(chosen).to(device)).tolist()
        for index, row in zip(chosen, decoded, strict=True):
            tags[index] = tuple(examples.lexicon.tags[tag] for tag in row[: examples.lengths[index]])
    return tags


class TrainedTagger:
    """A tagger, the words and tags it knows, and the pretrained model whose layers it reads (None without ELMo)."""

    def __init__(
        self, tagger: Tagger, lexicon: Lexicon, model: Pretrained | None = None, tag_column: str | int | None = None
    ) -> None:
        self.tagger, self.lexicon, self.model, self.tag_column = tagger, lexicon, model, tag_column

    def predict(self, sentences: Sequence[Sequence[str]], batch_size: int = 64) -> list[tuple[str, ...]]:
        """The tags of each sentence, a sequence of words."""
        if any(isinstance(sentence, str) for sentence in sentences):
            raise ValueError("a sentence to tag is a list of words: split the text first, e.g. with Embedder.tokenize")
        untagged = [TaggedSentence(tuple(words)) for words in sentences]
        device = str(next(self.tagger.parameters()).device)
        examples = make_examples(untagged, self.lexicon, self.tagger.config, self.model, device)
        return tag_examples(self.tagger, examples, batch_size)

    def save(
        self,
        directory: str | Path,
        bilm: str | None = None,
        overwrite: bool = False,
        more_files: Mapping[str, str] | None = None,
    ) -> None:
        """Write the tagger's directory, whole or not at all, with texts to put beside it (`more_files`, by name).

        `bilm` is the name or path under which its frozen biLM will be found again; without one the biLM is kept inside.
        """
        keep_inside = self.model is not None and (bilm is None or self.tagger.config.finetune)
        with atomic_directory(directory, overwrite=overwrite) as partial:
            if self.model is not None and keep_inside:
                # A biLM that was trained further no longer fits its softmax.
                loading.save(replace(self.model, softmax=None), partial / OWN_BILM)
            save_file(self._own_weights(), partial / "tagger.safetensors")
            (partial / "words.txt").write_text("".join(f"{word}\n" for word in self.lexicon.words), encoding="utf-8")
            description = self._description(OWN_BILM if keep_inside else bilm)
            texts = {"config.json": json.dumps(description, indent=2) + "\n", **(more_files or {})}
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")

    def _own_weights(self) -> dict[str, Tensor]:
        weights = self.tagger.state_dict()
        return {name: value.contiguous() for name, value in weights.items() if not name.startswith(OF_BILM)}

    def _description(self, bilm: str | None) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "tagger": asdict(self.tagger.config),
            "tags": self.lexicon.tags,
            "num_frequent": self.lexicon.num_frequent,
            "scheme": self.lexicon.scheme,
            "tag_column": self.tag_column,
            "bilm": None if self.model is None else bilm,
            "bilm_fingerprint": None if self.model is None else fingerprint(self.model),
        }


def _read_settings(path: Path) -> tuple[TaggerConfig, dict[str, Any]]:
    """The tagger's configuration, and all that config.json says."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its format_version is {values['format_version']}, known is {FORMAT_VERSION}: upgrade")
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
    """Load a tagger that `fit` saved.

    Args:
        directory: Its directory.
        model: Its biLM, loaded or as `elmokit.load` takes it, where that is no longer where it was in training.
        device: Where to compute; None: on a GPU where there is one.

    Returns:
        The tagger, which predicts the tags of sentences.

    Raises:
        FileNotFoundError: The tagger or its biLM is missing.
        CheckpointError: One of them is damaged, or the biLM is another one.
        ValueError: A `model` for a tagger that has its biLM in its directory, or reads none.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} is not a tagger: it holds no config.json")
    config, description = _read_settings(directory / "config.json")
    if model is not None and not config.elmo:
        raise ValueError(f"{directory} reads no biLM: leave the model out")
    words, tags = tuple(read_lines(directory / "words.txt")), tuple(description["tags"])
    lexicon = Lexicon(words, tags, description["num_frequent"], description["scheme"])
    pretrained = _load_bilm(directory, description, model) if config.elmo else None
    tagger = build_tagger(config, lexicon, pretrained.bilm if pretrained else None)
    _load_weights(tagger, directory / "tagger.safetensors")
    return TrainedTagger(tagger.to(pick_device(device)).eval(), lexicon, pretrained, description["tag_column"])


def _load_bilm(directory: Path, description: dict[str, Any], override: loading.ModelSource) -> Pretrained:
    kept_inside = description["bilm"] == OWN_BILM and (directory / OWN_BILM).is_dir()
    if kept_inside and override is not None:
        raise ValueError(f"{directory} keeps its own biLM, in {directory / OWN_BILM}: leave the model out")
    name = str(directory / OWN_BILM) if kept_inside else override or description["bilm"]
    try:
        pretrained = loading.resolve_model(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{directory} needs its biLM: {error}; say where it lies now (model=...)") from error
    if fingerprint(pretrained) != description["bilm_fingerprint"]:
        raise CheckpointError(f"{name} is not the biLM that {directory} was trained on: its weights or settings differ")
    return pretrained


def _load_weights(tagger: Tagger, path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut short or no safetensors file ({error}): fit the tagger again") from error
    expected = {name: value for name, value in tagger.state_dict().items() if not name.startswith(OF_BILM)}
    check_shapes(path, *({name: tuple(value.shape) for name, value in found.items()} for found in (expected, weights)))
    tagger.load_state_dict(weights, strict=False)  # the biLM's weights are there already
