"""AllenNLP's `allennlp.modules.elmo`, `allennlp.commands.elmo` and related modules."""

from elmokit.compat.allennlp.bilm import ElmoLstm as ElmoLstm
from elmokit.compat.allennlp.bilm import _ElmoBiLm as _ElmoBiLm
from elmokit.compat.allennlp.bilm import _ElmoCharacterEncoder as _ElmoCharacterEncoder
from elmokit.compat.allennlp.bilm import (
    add_sentence_boundary_token_ids as add_sentence_boundary_token_ids,
)
from elmokit.compat.allennlp.bilm import remove_sentence_boundaries as remove_sentence_boundaries
from elmokit.compat.allennlp.common import ConfigurationError as ConfigurationError
from elmokit.compat.allennlp.common import Params as Params
from elmokit.compat.allennlp.common import cached_path as cached_path
from elmokit.compat.allennlp.common import lazy_groups_of as lazy_groups_of
from elmokit.compat.allennlp.elmo import Elmo as Elmo
from elmokit.compat.allennlp.elmo import ELMoCharacterMapper as ELMoCharacterMapper
from elmokit.compat.allennlp.elmo import ELMoTokenCharactersIndexer as ELMoTokenCharactersIndexer
from elmokit.compat.allennlp.elmo import ElmoTokenEmbedder as ElmoTokenEmbedder
from elmokit.compat.allennlp.elmo import ScalarMix as ScalarMix
from elmokit.compat.allennlp.elmo import batch_to_ids as batch_to_ids
from elmokit.compat.allennlp.embedder import ElmoEmbedder as ElmoEmbedder
from elmokit.compat.shared import DEFAULT_OPTIONS_FILE as DEFAULT_OPTIONS_FILE
from elmokit.compat.shared import DEFAULT_WEIGHT_FILE as DEFAULT_WEIGHT_FILE
