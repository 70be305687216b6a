"""Models on disk: elmokit's own format, and those of older systems.

Pretrained: a biLM with everything that belongs to it
MixWeights: its fixed mix of layers
ModelSource: what every argument `model` takes: a path, a name, None, or a Pretrained
CheckpointError: the files of a model are damaged, or do not fit each other
load, save: read any published format; write the native one
list_models: the names of the bundled models
describe: the facts of a model, for `elmokit info`
convert: read a model in any format, and write it in another
push_to_hub: publish a model on the Hugging Face Hub
from_allennlp, to_allennlp: a biLM with the weights of AllenNLP's, and the reverse
"""

from elmokit.checkpoints.allennlp import from_allennlp, to_allennlp
from elmokit.checkpoints.exporting import convert, push_to_hub
from elmokit.checkpoints.loading import (
    ModelSource,
    describe,
    list_models,
    load,
    save,
)
from elmokit.checkpoints.pretrained import CheckpointError, MixWeights, Pretrained

__all__ = [
    "CheckpointError",
    "MixWeights",
    "ModelSource",
    "Pretrained",
    "convert",
    "describe",
    "from_allennlp",
    "list_models",
    "load",
    "push_to_hub",
    "save",
    "to_allennlp",
]
