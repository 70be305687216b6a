"""Pretraining and fine-tuning of biLMs.

- `PretrainConfig`, `FinetuneConfig`: the settings, as of the command line.
- `pretrain`, `finetune`: train a model, from settings to its directory.
- `SentenceObjective`: the base of objectives of your own, for `pretrain`.
- `LocalBatch`: what such an objective reads in a step.

All but the settings are imported when they are first used, so that the help of the command line
does not load PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from elmokit.train.config import FinetuneConfig, PretrainConfig

if TYPE_CHECKING:
    from elmokit.train.finetuning import finetune
    from elmokit.train.objectives import LocalBatch, SentenceObjective
    from elmokit.train.pretraining import pretrain

__all__ = [
    "FinetuneConfig",
    "LocalBatch",
    "PretrainConfig",
    "SentenceObjective",
    "finetune",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    for module in ("pretraining", "finetuning", "objectives") if name in __all__ else ():
        names = vars(import_module(f"elmokit.train.{module}"))
        if name in names:
            return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
