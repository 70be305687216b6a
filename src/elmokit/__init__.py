"""elmokit: pretrain, load and use ELMo, the deep contextual word vectors of Peters et al. (2018).

The public names are imported when they are first used, so that `import elmokit` does not load PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmokit.checkpoints.loading import CheckpointError, Pretrained, load, save
    from elmokit.config import BiLMConfig
    from elmokit.embed.embedder import Embedder
    from elmokit.nn.bilm import BiLM
    from elmokit.nn.elmo import Elmo
    from elmokit.nn.scalar_mix import ScalarMix
    from elmokit.ops.dispatch import available_backends, set_backend

__version__ = "0.1.0.dev0"

__all__ = [
    "BiLM",
    "BiLMConfig",
    "CheckpointError",
    "Elmo",
    "Embedder",
    "Pretrained",
    "ScalarMix",
    "__version__",
    "available_backends",
    "load",
    "save",
    "set_backend",
]

_MODULE_OF = {
    "BiLM": "elmokit.nn.bilm",
    "BiLMConfig": "elmokit.config",
    "CheckpointError": "elmokit.checkpoints.loading",
    "Elmo": "elmokit.nn.elmo",
    "Embedder": "elmokit.embed.embedder",
    "Pretrained": "elmokit.checkpoints.loading",
    "ScalarMix": "elmokit.nn.scalar_mix",
    "available_backends": "elmokit.ops.dispatch",
    "load": "elmokit.checkpoints.loading",
    "save": "elmokit.checkpoints.loading",
    "set_backend": "elmokit.ops.dispatch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # the next access does not come here again
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
