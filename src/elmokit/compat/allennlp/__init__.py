"""AllenNLP's ELMo: the interface of `allennlp.modules.elmo`, `allennlp.commands.elmo` and related modules."""

from elmokit.compat.allennlp.boundaries import add_sentence_boundary_token_ids, remove_sentence_boundaries
from elmokit.compat.allennlp.configuration import ConfigurationError, Params
from elmokit.compat.allennlp.elmo import Elmo, _ElmoBiLm, _ElmoCharacterEncoder, batch_to_ids
from elmokit.compat.allennlp.embedder import DEFAULT_BATCH_SIZE, ElmoEmbedder, allennlp_elmo
from elmokit.compat.allennlp.indexer import ELMoCharacterMapper, ELMoTokenCharactersIndexer
from elmokit.compat.allennlp.scalar_mix import ScalarMix
from elmokit.compat.allennlp.token_embedder import ElmoTokenEmbedder
from elmokit.compat.weights import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "DEFAULT_OPTIONS_FILE",
    "DEFAULT_WEIGHT_FILE",
    "ConfigurationError",
    "ELMoCharacterMapper",
    "ELMoTokenCharactersIndexer",
    "Elmo",
    "ElmoEmbedder",
    "ElmoTokenEmbedder",
    "Params",
    "ScalarMix",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "add_sentence_boundary_token_ids",
    "allennlp_elmo",
    "batch_to_ids",
    "remove_sentence_boundaries",
]
