"""elmokit: pretrain, load and use ELMo, the deep contextual word vectors of Peters et al. (2018).

A public name is imported when it is first used, so that `import elmokit` does not load PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmokit.checkpoints.loading import CheckpointError, Pretrained, list_models, load, save
    from elmokit.checkpoints.push import push_to_hub
    from elmokit.config import (
        BiLMConfig,
        CharCNNConfig,
        GatedCNNConfig,
        InterleavedConfig,
        LSTMConfig,
        StatePolicy,
        TransformerConfig,
    )
    from elmokit.data.prepare import prepare
    from elmokit.embed.embedder import Embedder, Embeddings
    from elmokit.embed.files import embed_fasta, embed_file, encode_file
    from elmokit.lm.candidates import next_words, substitutes
    from elmokit.lm.evaluate import evaluate
    from elmokit.lm.scoring import score
    from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
    from elmokit.nn.elmo import Elmo, ElmoOutput, batch_to_ids
    from elmokit.nn.inference import prepack
    from elmokit.nn.scalar_mix import ScalarMix
    from elmokit.ops.dispatch import available_backends, set_backend
    from elmokit.storage.collate import VectorBatch, collate
    from elmokit.storage.store import EmbeddingStore
    from elmokit.tasks.config import FitConfig, WordsConfig
    from elmokit.tasks.fitting.fit import fit
    from elmokit.tasks.fitting.model import TaskModel, load_task_model
    from elmokit.text.characters import TruncationWarning
    from elmokit.text.vocab import Vocab
    from elmokit.train.config import FinetuneConfig, PretrainConfig
    from elmokit.train.finetune import finetune
    from elmokit.train.pretrain import pretrain

__version__ = "0.1.0"

__all__ = [
    "BiLM",
    "BiLMConfig",
    "BiLMOutput",
    "BiLMState",
    "CharCNNConfig",
    "CheckpointError",
    "Elmo",
    "ElmoOutput",
    "Embedder",
    "EmbeddingStore",
    "Embeddings",
    "FinetuneConfig",
    "FitConfig",
    "GatedCNNConfig",
    "InterleavedConfig",
    "LSTMConfig",
    "PretrainConfig",
    "Pretrained",
    "ScalarMix",
    "StatePolicy",
    "TaskModel",
    "TransformerConfig",
    "TruncationWarning",
    "VectorBatch",
    "Vocab",
    "WordsConfig",
    "__version__",
    "available_backends",
    "batch_to_ids",
    "collate",
    "embed_fasta",
    "embed_file",
    "encode_file",
    "evaluate",
    "finetune",
    "fit",
    "list_models",
    "load",
    "load_task_model",
    "next_words",
    "prepack",
    "prepare",
    "pretrain",
    "push_to_hub",
    "save",
    "score",
    "set_backend",
    "substitutes",
]

_NAMES_IN = {
    "checkpoints.loading": ["CheckpointError", "Pretrained", "list_models", "load", "save"],
    "checkpoints.push": ["push_to_hub"],
    "config": [
        "BiLMConfig",
        "CharCNNConfig",
        "GatedCNNConfig",
        "InterleavedConfig",
        "LSTMConfig",
        "StatePolicy",
        "TransformerConfig",
    ],
    "data.prepare": ["prepare"],
    "embed.embedder": ["Embedder", "Embeddings"],
    "embed.files": ["embed_fasta", "embed_file", "encode_file"],
    "lm.candidates": ["next_words", "substitutes"],
    "lm.evaluate": ["evaluate"],
    "lm.scoring": ["score"],
    "nn.bilm": ["BiLM", "BiLMOutput", "BiLMState"],
    "nn.elmo": ["Elmo", "ElmoOutput", "batch_to_ids"],
    "nn.inference": ["prepack"],
    "nn.scalar_mix": ["ScalarMix"],
    "ops.dispatch": ["available_backends", "set_backend"],
    "storage.collate": ["VectorBatch", "collate"],
    "storage.store": ["EmbeddingStore"],
    "tasks.config": ["FitConfig", "WordsConfig"],
    "tasks.fitting.fit": ["fit"],
    "tasks.fitting.model": ["TaskModel", "load_task_model"],
    "text.characters": ["TruncationWarning"],
    "text.vocab": ["Vocab"],
    "train.config": ["FinetuneConfig", "PretrainConfig"],
    "train.finetune": ["finetune"],
    "train.pretrain": ["pretrain"],
}
_MODULE_OF = {name: f"elmokit.{module}" for module, names in _NAMES_IN.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # later accesses find it without calling this function
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
