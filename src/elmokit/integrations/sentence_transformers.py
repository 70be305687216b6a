"""`ElmoModule`: ELMo as the first module of a SentenceTransformer (elmokit's extra sentence-transformers)."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from elmokit.checkpoints.loading import ModelSource, resolve_model, save
from elmokit.checkpoints.loading import load as load_model
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.embed.outputs import layer_weights, plain_layers
from elmokit.fs.json_files import from_json, read_json
from elmokit.nn.bilm import BiLMState
from elmokit.nn.elmo import Elmo
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.text.characters import TruncationWarning, truncation_in
from elmokit.text.tokenizers import TOKENIZED, get_tokenizer

try:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import InputModule
    from sentence_transformers.util import import_module_class
except ImportError as error:
    raise ImportError(
        "elmokit.integrations.sentence_transformers needs sentence-transformers of version 6: pip install "
        "'sentence-transformers>=6' (elmokit's extra sentence-transformers)"
    ) from error

TYPE_IN_FILES = "elmokit.integrations.sentence_transformers.ElmoModule"


def _set_mix(mix: ScalarMix, model: Pretrained, layers: str | int) -> None:
    """Set the weights of a mix as `layers` says: those of "mix" can be trained, all others are fixed."""
    if layers == "mix":
        start = model.mix or MixWeights((0.0,) * model.config.num_representations)
        weights, gamma = torch.tensor(start.weights), start.gamma
    else:
        share = layer_weights(model, layers)
        weights, gamma = (share / share.sum()).log(), float(share.sum())  # -inf leaves a layer out
    with torch.no_grad():
        mix.weights.copy_(weights)
        mix.gamma.fill_(gamma)
    mix.requires_grad_(layers == "mix")


@dataclass(frozen=True)
class _Settings:
    """The contents of elmo_module.json."""

    layers: str | int
    max_seq_length: int | None
    freeze: bool


class ElmoModule(InputModule):
    """Texts -> ELMo vectors of their words, to be followed by a pooling module.

    A saved module is a directory in elmokit's own format with one more file, so that `elmokit.load` reads it, too,
    including what was trained: the mix of the layers and, with freeze=False, the biLM.
    """

    config_file_name = "elmo_module.json"  # config.json belongs to the biLM
    config_keys: ClassVar = ["layers", "max_seq_length", "freeze"]
    save_in_root = False  # a README.md is written there, which would replace the model's card

    def __init__(
        self,
        model: ModelSource = None,
        layers: str | int = "mix",
        max_seq_length: int | None = None,
        freeze: bool = True,
    ) -> None:
        """Wrap a pretrained model in a module.

        Args:
            model: Anything that `elmokit.load` takes, or a loaded model, which is not copied.
            layers: "mix", whose weights are trained, or "average", "sum", "top" or the index of a layer, which are
                fixed.
            max_seq_length: Maximum number of words that are read of a text; None: no limit.
            freeze: Do not train the biLM.

        Raises:
            ValueError: The model has no such layers, or `max_seq_length` is below 1.
            FileNotFoundError, CheckpointError: As `elmokit.load`.
        """
        super().__init__()
        layers = plain_layers(layers)
        self._model = resolve_model(model)
        self._layers, self._freeze, self.max_seq_length = layers, freeze, max_seq_length
        self.elmo = Elmo(self._model.bilm, dropout=0.0, freeze=freeze)
        _set_mix(self._mix, self._model, layers)
        self._tokenizer = get_tokenizer(self._model.tokenizer or TOKENIZED)

    @property
    def layers(self) -> str | int:
        """The choice of layers, with which the module was made."""
        return self._layers

    @property
    def freeze(self) -> bool:
        """Whether the module was made without training of the biLM."""
        return self._freeze

    @property
    def max_seq_length(self) -> int | None:
        """Maximum number of words that are read of a text; None: no limit."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        if value is not None and value < 1:
            raise ValueError(f"max_seq_length must be at least 1, or None for all words, not {value}")
        self._max_seq_length = value

    @property
    def _mix(self) -> ScalarMix:
        return cast(ScalarMix, self.elmo.mixes[0])

    def get_embedding_dimension(self) -> int:
        """Width of a word's vector."""
        return self._model.config.output_dim

    # --- Texts to vectors --------------------------------------------------------------------------------------------

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Split texts into words, and encode these.

        Args:
            inputs: Strings.
            prompt: A text that is put before each of them.
            kwargs: Other settings of `SentenceTransformer.encode`, all ignored.

        Returns:
            "input_ids" (B, T, C) or (B, T) int64, as `Elmo` takes them; "attention_mask" (B, T) int64, 1 for a word,
            and for the first position of a text without words, whose vector is zero; "prompt_length" in words, if there
            is a prompt.

        Raises:
            ValueError: An input is not a string.

        Warns:
            TruncationWarning: Words are longer than the model can read.
        """
        if others := [text for text in inputs if not isinstance(text, str)]:
            raise ValueError(f"ElmoModule takes texts as strings, not {others[0]!r:.60}")
        sentences = [self._tokenizer.split((prompt or "") + text)[: self.max_seq_length] for text in inputs]
        lengths = torch.tensor([len(words) for words in sentences], dtype=torch.int64)
        mask = torch.arange(max([1, *map(len, sentences)])) < lengths[:, None]
        features: dict[str, Any] = {"input_ids": self._ids(sentences, mask), "attention_mask": mask.long()}
        features["attention_mask"][:, 0] = 1
        if prompt:
            # A text follows: at the end of a sentence some words would be split in another way.
            features["prompt_length"] = len(self._tokenizer.split(f"{prompt} .")) - 1
        return features

    def _ids(self, sentences: list[list[str]], mask: Tensor) -> Tensor:
        """The ids of words where `mask` is True, zeros elsewhere."""
        encoder = self._model.bilm.token_encoder
        words = [word for sentence in sentences for word in sentence]
        if encoder.count_truncated(words):
            message = truncation_in(sentences, encoder.count_truncated, encoder.word_limit)
            warnings.warn(message, TruncationWarning, stacklevel=2)
        of_words = encoder.ids(words, self._model.vocab).long()
        ids = of_words.new_zeros(*mask.shape, *of_words.shape[1:])
        ids[mask] = of_words
        return ids

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add "token_embeddings" (B, T, 2D) to the features of `preprocess`."""
        ids = features["input_ids"]
        features["token_embeddings"] = self.elmo(ids, self._start(len(ids))).representations[0]
        return features

    def _start(self, rows: int) -> BiLMState | None:
        """The state from which every text starts; None: zeros, even for models that carry it from text to text."""
        if self._model.state_policy != "warm" or (state := self._model.warm_state) is None:
            return None
        state = state.to(self._model.bilm.device)
        return BiLMState(*(part.expand(-1, -1, rows, -1) for part in (state.h, state.c)))

    # --- Files -------------------------------------------------------------------------------------------------------

    def pretrained(self) -> Pretrained:
        """The model in elmokit's own class, with the weights that this module has learned."""
        mix = MixWeights(tuple(self._mix.weights.tolist()), self._mix.gamma.item())
        start = ScalarMix(len(mix.weights))
        _set_mix(start, self._model, "mix")
        unchanged = start.weights.tolist() == list(mix.weights) and start.gamma.item() == mix.gamma
        return self._model if self.layers != "mix" or unchanged else replace(self._model, mix=mix)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the model in elmokit's own format, always as safetensors, and the settings of the module."""
        save(self.pretrained(), output_path, overwrite=True)
        self.save_config(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> ElmoModule:
        """Read what `save` wrote, from a directory or from a model on the Hugging Face Hub.

        The arguments are those of `sentence_transformers.base.modules.Module.load`; errors are those of `ElmoModule`.
        """
        place: dict[str, Any] = {
            "subfolder": subfolder, "token": token, "cache_folder": cache_folder, "revision": revision,
            "local_files_only": local_files_only,
        }  # fmt: skip
        # if the file is missing, `load_config` returns no settings
        content, name = cls.load_config(model_name_or_path, **place), f"{cls.config_file_name} of {model_name_or_path}"
        settings = asdict(from_json(_Settings, content, name))
        return cls(load_model(cls.load_dir_path(model_name_or_path, **place)), **settings)


@dataclass(frozen=True)
class _Entry:
    """An entry of modules.json."""

    idx: int
    name: str
    path: str
    type: str


# If sentence-transformers is not installed, pyright takes its name for this file.
def load(directory: str | Path, **settings: Any) -> SentenceTransformer:  # pyright: ignore[reportGeneralTypeIssues]
    """Load a saved SentenceTransformer that begins with an `ElmoModule`.

    `SentenceTransformer(directory)` loads no class from outside of its own package without trust_remote_code=True,
    which would also trust any other class that the directory names. This function trusts only `ElmoModule`.

    Args:
        directory: A directory written by `SentenceTransformer.save_pretrained`.
        settings: Arguments of `SentenceTransformer`, such as `device`; they override those that were saved.

    Raises:
        FileNotFoundError: The directory has no modules.json.
        ValueError: Its files are damaged, or one of its modules is neither `ElmoModule` nor one of
            sentence-transformers.
    """
    directory = Path(directory)
    if not (directory / "modules.json").is_file():
        raise FileNotFoundError(f"{directory} holds no SentenceTransformer: looked for modules.json in it")
    modules: Any = OrderedDict()  # by name, as SentenceTransformer itself makes it
    for entry in from_json(list[_Entry], read_json(directory / "modules.json"), "modules.json"):
        kind = ElmoModule if entry.type == TYPE_IN_FILES else import_module_class(entry.type, str(directory))
        modules[entry.name] = kind.load(str(directory), subfolder=entry.path)
    name = "config_sentence_transformers.json"
    try:
        config = from_json(dict[str, Any], read_json(directory / name), name)
    except FileNotFoundError as error:
        raise ValueError(f"{directory} has no {name}: copy the whole directory") from error
    kept: dict[str, Any] = {
        "prompts": dict[str, str], "default_prompt_name": str | None, "similarity_fn_name": str | None,
        "truncate_dim": int | None,
    }  # fmt: skip
    saved = {key: from_json(kind, config[key], f"{name}: {key}") for key, kind in kept.items() if key in config}
    return SentenceTransformer(modules=modules, **saved | settings)  # pyright: ignore[reportCallIssue]
