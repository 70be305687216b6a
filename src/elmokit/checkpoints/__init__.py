"""Models on disk: the native format, and those of older systems."""

from elmokit.checkpoints.conversion import convert
from elmokit.checkpoints.formats.allennlp import arranged, bilm_name, rearranged
from elmokit.checkpoints.formats.bilm_hdf5 import (
    arrays_of,
    config_from_options,
    read_bilm_hdf5,
    read_vocabulary,
    write_token_embeddings,
)
from elmokit.checkpoints.formats.onnx_graph import write_onnx
from elmokit.checkpoints.formats.tf_checkpoint import find_prefix
from elmokit.checkpoints.hub import download, hub_model
from elmokit.checkpoints.loading import (
    DEFAULT_MODEL,
    Detected,
    Layout,
    ModelSource,
    check_overwritable,
    describe,
    list_models,
    load,
    locate,
    model_of,
    resolve_model,
    save,
)
from elmokit.checkpoints.native import filled
from elmokit.checkpoints.pretrained import (
    CheckpointError,
    MixWeights,
    Pretrained,
    check_finite,
    check_shapes,
    fingerprint,
    on_device,
    weights_digest,
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
    "arranged",
    "arrays_of",
    "bilm_name",
    "check_finite",
    "check_overwritable",
    "check_shapes",
    "config_from_options",
    "convert",
    "describe",
    "download",
    "filled",
    "find_prefix",
    "fingerprint",
    "hub_model",
    "list_models",
    "load",
    "locate",
    "model_of",
    "on_device",
    "push_to_hub",
    "read_bilm_hdf5",
    "read_vocabulary",
    "rearranged",
    "resolve_model",
    "save",
    "weights_digest",
    "write_onnx",
    "write_token_embeddings",
]
