"""ELMo as the first module of a SentenceTransformer (extra sentence-transformers)."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from huggingface_hub import snapshot_download
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from sentence_transformers.sentence_transformer.model_card import (
    SentenceTransformerModelCardData,
)
from sentence_transformers.util import import_module_class

from elmokit.checkpoints import MixWeights, ModelSource, save
from elmokit.checkpoints import load as load_model
from elmokit.embed import layer_weights
from elmokit.fs import read_json
from elmokit.nn import Elmo, ScalarMix
from elmokit.text import TOKENIZED, TruncationWarning, get_tokenizer

TYPE_IN_FILES = "elmokit.integrations.sentence_transformers.ElmoModule"
HUB_OPTIONS = {
    "token": "token",
    "cache_folder": "cache_dir",
    "local_files_only": "local_files_only",
}
HUB_FILES = ["*.json", "*.txt", "*.safetensors", "*.md"]


class ElmoCardData(SentenceTransformerModelCardData):
    """Card data whose example uses `load`, and says that it needs elmokit."""

    def generate_usage_snippet(self) -> str:
        snippet = super().generate_usage_snippet()
        for theirs, ours in (
            (
                "from sentence_transformers import SentenceTransformer",
                f"from {__name__} import load",
            ),
            ("model = SentenceTransformer(", "model = load("),
        ):
            snippet = snippet.replace(theirs, ours)
        return (
            f"Its first module is an ELMo of elmokit, which has to be installed, too.\n\n{snippet}"
        )


class ElmoModule(InputModule):
    """Texts -> ELMo vectors of their words, to be followed by a pooling module.

    A saved module is a directory in elmokit's own format with one more file, so that `elmokit.load`
    reads it, too, including what was trained: the mix of the layers and, with freeze=False, the
    biLM.
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
            layers: "mix", whose weights are trained, or "average", "sum", "top" or the index of a
                layer, which are fixed.
            max_seq_length: Maximum number of words that are read of a text; None: no limit.
            freeze: Do not train the biLM.

        Raises:
            ValueError: The model has no such layers.
            FileNotFoundError, CheckpointError: As `elmokit.load`.
        """
        super().__init__()
        self.layers = layers if isinstance(layers, str) else int(layers)  # NumPy's, for JSON
        self.max_seq_length, self.freeze = max_seq_length, freeze
        self._model = load_model(model, softmax=False)
        self.elmo = Elmo(self._model.bilm, dropout=0.0, freeze=freeze)
        if layers == "mix":
            start = self._model.mix or MixWeights((0.0,) * self._model.config.num_representations)
            weights, gamma = torch.tensor(start.weights), start.gamma
        else:
            shares = layer_weights(self._model, layers)
            weights, gamma = (
                (shares / shares.sum()).log(),
                float(shares.sum()),
            )  # -inf leaves a layer out
            self._mix.requires_grad_(False)
        with torch.no_grad():
            self._mix.weights.copy_(weights)
            self._mix.gamma.fill_(gamma)
        self._tokenizer = get_tokenizer(self._model.tokenizer or TOKENIZED)

    def on_model_ready(self, model: Any) -> None:
        """Let the card of the SentenceTransformer name elmokit."""
        if type(model.model_card_data) is SentenceTransformerModelCardData:
            model.model_card_data.__class__ = ElmoCardData
            model.model_card_data.add_tags(["elmokit", "elmo"])

    @property
    def _mix(self) -> ScalarMix:
        return cast(ScalarMix, self.elmo.mixes[0])

    def get_embedding_dimension(self) -> int:
        """Width of a word's vector."""
        return self._model.config.output_dim

    # --- Texts to vectors -------------------------------------------------------------------------

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Split texts into words, and encode these.

        Args:
            inputs: Strings.
            prompt: A text that is put before each of them.
            kwargs: Other settings of `SentenceTransformer.encode`, all ignored.

        Returns:
            "input_ids" (B, T, C) or (B, T) int64, as `Elmo` takes them; "attention_mask" (B, T)
            int64, 1 for a word, and for the first position of a text without words, whose vector is
            zero; "prompt_length" in words, if there is a prompt.

        Warns:
            TruncationWarning: Words are longer than the model can read.
        """
        sentences = [
            self._tokenizer.tokenize((prompt or "") + text)[: self.max_seq_length]
            for text in inputs
        ]
        encoder, words = self._model.bilm.token_encoder, list(chain.from_iterable(sentences))
        if encoder.count_truncated(words):
            warning = TruncationWarning.in_sentences(
                sentences, encoder.count_truncated, encoder.word_limit
            )
            warnings.warn(warning, stacklevel=2)
        lengths = torch.tensor([len(words) for words in sentences], dtype=torch.int64)
        mask = torch.arange(max([1, *map(len, sentences)])) < lengths[:, None]
        word_ids = encoder.ids(words, self._model.vocab).long()
        ids = word_ids.new_zeros(*mask.shape, *word_ids.shape[1:])
        ids[mask] = word_ids
        attention_mask = mask.long()
        attention_mask[:, 0] = 1
        features: dict[str, Any] = {"input_ids": ids, "attention_mask": attention_mask}
        if prompt:
            # A text follows: at the end of a sentence some words would be split in another way.
            features["prompt_length"] = len(self._tokenizer.tokenize(f"{prompt} .")) - 1
        return features

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add "token_embeddings" (B, T, 2D) to the features of `preprocess`."""
        ids, start = features["input_ids"], self._model.start(self._model.single_sentence_state)
        if start is not None:
            start = start.to(ids.device).repeated(len(ids))
        features["token_embeddings"] = self.elmo(ids, start).representations[0]
        return features

    # --- Files ------------------------------------------------------------------------------------

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any
    ) -> None:
        """Write the model in elmokit's format, always as safetensors, and the module's settings."""
        learned = MixWeights(tuple(self._mix.weights.tolist()), self._mix.gamma.item())
        is_average = not any(learned.weights) and learned.gamma == 1
        keeps_mix = self.layers != "mix" or (is_average and self._model.mix is None)
        model = self._model if keeps_mix else replace(self._model, mix=learned)
        if not self.freeze:  # a map to vectors of texts belongs to the biLM as it was
            model = replace(model, text_map=None)
        save(model, output_path, overwrite=True)
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

        The arguments are those of `sentence_transformers.base.modules.Module.load`; errors are
        those of `ElmoModule`.
        """
        location: dict[str, Any] = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        config = cls.load_config(model_name_or_path, **location)
        settings = {name: config[name] for name in cls.config_keys}
        return cls(load_model(cls.load_dir_path(model_name_or_path, **location)), **settings)


# If sentence-transformers is not installed, pyright takes its name for this file.
def load(directory: str | Path, **settings: Any) -> SentenceTransformer:  # pyright: ignore[reportGeneralTypeIssues]
    """Load a saved SentenceTransformer that begins with an `ElmoModule`.

    `SentenceTransformer(directory)` loads no class from outside of its own package without
    trust_remote_code=True, which would also trust any other class that the directory names. This
    function trusts only `ElmoModule`.

    Args:
        directory: A directory written by `SentenceTransformer.save_pretrained`, or OWNER/NAME on
            the Hugging Face Hub.
        settings: Arguments of `SentenceTransformer`, such as `device`, or for the Hub `revision`,
            `token`, `cache_folder` and `local_files_only`; they override those that were saved.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: One of the modules is neither `ElmoModule` nor one of sentence-transformers.
    """
    revision, directory = settings.pop("revision", None), Path(directory)
    options = {
        ours: settings.pop(theirs) for theirs, ours in HUB_OPTIONS.items() if theirs in settings
    }
    if not directory.exists():
        options |= {"revision": revision, "allow_patterns": HUB_FILES}
        directory = Path(snapshot_download(directory.as_posix(), **options))
    modules: Any = OrderedDict()  # by name, as SentenceTransformer itself makes it
    for entry in read_json(directory / "modules.json"):
        kind = (
            ElmoModule
            if entry["type"] == TYPE_IN_FILES
            else import_module_class(entry["type"], str(directory))
        )
        modules[entry["name"]] = kind.load(str(directory), subfolder=entry["path"])
    config = read_json(directory / "config_sentence_transformers.json")
    names = {"prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"}
    saved = {name: value for name, value in config.items() if name in names}
    return SentenceTransformer(modules=modules, **saved | settings)  # pyright: ignore[reportCallIssue]
