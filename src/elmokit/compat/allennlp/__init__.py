"""AllenNLP's `allennlp.modules.elmo`, `allennlp.commands.elmo` and related modules."""

from elmokit.compat.allennlp.bilm import (
    ElmoLstm,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    add_sentence_boundary_token_ids,
    remove_sentence_boundaries,
)
from elmokit.compat.allennlp.common import ConfigurationError, Params, cached_path, lazy_groups_of
from elmokit.compat.allennlp.elmo import (
    Elmo,
    ELMoCharacterMapper,
    ELMoTokenCharactersIndexer,
    ElmoTokenEmbedder,
    ScalarMix,
    batch_to_ids,
)
from elmokit.compat.allennlp.embedder import ElmoEmbedder
from elmokit.compat.shared import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE

__all__ = [
    "DEFAULT_OPTIONS_FILE",
    "DEFAULT_WEIGHT_FILE",
    "ConfigurationError",
    "ELMoCharacterMapper",
    "ELMoTokenCharactersIndexer",
    "Elmo",
    "ElmoEmbedder",
    "ElmoLstm",
    "ElmoTokenEmbedder",
    "Params",
    "ScalarMix",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "add_sentence_boundary_token_ids",
    "batch_to_ids",
    "cached_path",
    "lazy_groups_of",
    "remove_sentence_boundaries",
]
