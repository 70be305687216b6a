"""Models on disk: the native format, and those of older systems."""

from elmokit.checkpoints.conversion import convert
from elmokit.checkpoints.formats.allennlp import from_allennlp, to_allennlp
from elmokit.checkpoints.formats.bilm_hdf5 import (
    config_from_options,
    load_bilm_files,
)
from elmokit.checkpoints.formats.onnx_graph import write_onnx
from elmokit.checkpoints.loading import (
    DEFAULT_MODEL,
    Detected,
    Layout,
    ModelSource,
    check_overwritable,
    describe,
    fingerprint,
    list_models,
    load,
    locate,
    model_of,
    save,
)
from elmokit.checkpoints.pretrained import (
    CheckpointError,
    MixWeights,
    Pretrained,
    check_shapes,
)
from elmokit.checkpoints.push import push_to_hub

__all__ = [
    "DEFAULT_MODEL",
    "CheckpointError",
    "Detected",
    "Layout",
    "MixWeights",
    "ModelSource",
    "Pretrained",
    "check_overwritable",
    "check_shapes",
    "config_from_options",
    "convert",
    "describe",
    "fingerprint",
    "from_allennlp",
    "list_models",
    "load",
    "load_bilm_files",
    "locate",
    "model_of",
    "push_to_hub",
    "save",
    "to_allennlp",
    "write_onnx",
]
