"""What `allennlp.modules.elmo`, `.modules.token_embedders` and `.commands.elmo` offered for ELMo."""

from elmokit.compat.allennlp.elmo import Elmo, ElmoTokenEmbedder, _ElmoBiLm, batch_to_ids
from elmokit.compat.allennlp.embedder import ElmoEmbedder, allennlp_elmo

__all__ = ["Elmo", "ElmoEmbedder", "ElmoTokenEmbedder", "_ElmoBiLm", "allennlp_elmo", "batch_to_ids"]
