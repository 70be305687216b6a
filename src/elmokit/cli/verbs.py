"""The verbs: one frozen dataclass each, whose fields are the options and whose docstrings are the help text.

A verb imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Union, get_args

from tyro.conf import subcommand

from elmokit.cli.analysis import Probe, Senses, Wsd
from elmokit.cli.compat import Compat
from elmokit.cli.language_model import Evaluate, Finetune, NextWords, Prepare, Pretrain, Score, Substitutes
from elmokit.cli.models import Convert, Info
from elmokit.cli.tasks import EvaluateTask, Fit, NoTask, Predict, fit_verb
from elmokit.cli.vectors import Compare, Embed, Encode, Neighbors

Verb = (
    Prepare | Pretrain | Finetune | Evaluate | Embed | Encode | Score | Substitutes | NextWords | Compare | Neighbors
    | Probe | Wsd | Senses | Fit | Predict | EvaluateTask | Convert | Info | Compat
)  # fmt: skip

# Verbs that resume an interrupted run when the same command is run again.
RESUMABLE = (Prepare, Pretrain, Finetune, Embed, Encode, Fit)


def verbs_for(arguments: Sequence[str]) -> Any:
    """The union of the verbs for a command line: `fit` has the options of the task named there."""
    names_task = arguments[:1] == ["fit"] and len(arguments) > 1 and not arguments[1].startswith("-")
    fit = fit_verb(arguments[1]) if names_task else Fit[NoTask]
    named = Annotated[fit, subcommand("fit", description=fit.__doc__)]
    return Union[tuple(named if verb is Fit else verb for verb in get_args(Verb))]  # noqa: UP007 (made at run time)
