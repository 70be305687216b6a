"""The verbs: one frozen dataclass each, whose fields are the options and whose docstrings are the help text.

A verb imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

from elmokit.cli.analysis import Probe, Senses, Wsd
from elmokit.cli.compat import Compat
from elmokit.cli.language_model import Evaluate, Finetune, NextWords, Prepare, Pretrain, Score, Substitutes
from elmokit.cli.models import Convert, Info
from elmokit.cli.taggers import Fit, Predict
from elmokit.cli.vectors import Compare, Embed, Encode, Neighbors

Verb = (
    Prepare | Pretrain | Finetune | Evaluate | Embed | Encode | Score | Substitutes | NextWords | Compare | Neighbors
    | Probe | Wsd | Senses | Fit | Predict | Convert | Info | Compat
)  # fmt: skip

# Verbs that resume an interrupted run when the same command is run again.
RESUMABLE = (Prepare, Pretrain, Finetune, Embed, Encode)
