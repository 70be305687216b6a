"""The verbs: one frozen dataclass each, whose fields are its options and whose docstrings are its help.

Nothing is computed here: a verb imports the function that does the job when it runs, so that `--help` loads no PyTorch.
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

# What was stopped goes on when the command is given again.
RESUMED = (Prepare, Pretrain, Finetune, Embed, Encode)
