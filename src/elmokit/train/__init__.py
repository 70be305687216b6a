"""Pretraining and fine-tuning of biLMs.

The settings are imported at once, the functions when they are first used, so that the help of the
command line does not load PyTorch.
"""

from typing import TYPE_CHECKING, Any

from elmokit.train.config import FinetuneConfig, PretrainConfig

if TYPE_CHECKING:
    from elmokit.train.finetuning import finetune
    from elmokit.train.pretraining import pretrain

__all__ = ["FinetuneConfig", "PretrainConfig", "finetune", "pretrain"]


def __getattr__(name: str) -> Any:
    if name == "pretrain":
        from elmokit.train.pretraining import pretrain

        return pretrain
    if name == "finetune":
        from elmokit.train.finetuning import finetune

        return finetune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
