"""The verbs: one frozen dataclass each, whose fields are the options and whose docstrings are the help text.

A verb imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Union, get_args

from tyro.conf import subcommand

from elmokit.cli.analysis import Change, Probe, Scws, Senses, Wsd
from elmokit.cli.compat import Compat
from elmokit.cli.language_model import Evaluate, Finetune, NextWords, Prepare, Pretrain, Score, Substitutes
from elmokit.cli.models import Convert, Info
from elmokit.cli.tasks import EvaluateTask, Fit, LayerWeights, NoTask, Predict, SampleEfficiency, with_settings_of
from elmokit.cli.vectors import Compare, Embed, Encode, Neighbors

Verb = (
    Prepare | Pretrain | Finetune | Evaluate | Embed | Encode | Score | Substitutes | NextWords | Compare | Neighbors
    | Probe | Wsd | Scws | Senses | Change | Fit | Predict | EvaluateTask | SampleEfficiency | LayerWeights | Convert
    | Info | Compat
)  # fmt: skip

# Verbs that resume an interrupted run when the same command is run again.
RESUMABLE = (Prepare, Pretrain, Finetune, Embed, Encode, Fit, SampleEfficiency)


# Verbs whose options depend on the task that is named first.
OF_TASKS = {"fit": Fit, "sample-efficiency": SampleEfficiency}


def verbs_for(arguments: Sequence[str]) -> Any:
    """The union of the verbs for a command line: `fit` has the options of the task named there."""
    verbs: dict[Any, Any] = {}
    for name, verb in OF_TASKS.items():
        names_task = arguments[:1] == [name] and len(arguments) > 1 and not arguments[1].startswith("-")
        of_task = with_settings_of(verb, arguments[1]) if names_task else verb[NoTask]
        verbs[verb] = Annotated[of_task, subcommand(name, description=of_task.__doc__)]
    return Union[tuple(verbs.get(verb, verb) for verb in get_args(Verb))]  # noqa: UP007 (made at run time)
