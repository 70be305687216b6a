"""AllenNLP's ELMo: `allennlp.modules.elmo`, `allennlp.modules.token_embedders` and `allennlp.commands.elmo`."""

from elmokit.compat.allennlp.elmo import Elmo, ElmoTokenEmbedder, _ElmoBiLm, batch_to_ids
from elmokit.compat.allennlp.embedder import ElmoEmbedder, allennlp_elmo
from elmokit.compat.allennlp.scalar_mix import ScalarMix

__all__ = ["Elmo", "ElmoEmbedder", "ElmoTokenEmbedder", "ScalarMix", "_ElmoBiLm", "allennlp_elmo", "batch_to_ids"]
