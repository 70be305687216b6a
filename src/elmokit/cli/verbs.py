"""The verbs: one frozen dataclass each, whose fields are the options and whose docstrings are the help text.

A verb imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Annotated, Any, Union, cast, get_args, get_origin

from tyro.conf import subcommand

from elmokit.cli.analysis import Change, Probe, Senses, Wsd
from elmokit.cli.examples import EXAMPLES
from elmokit.cli.language_model import Evaluate, Finetune, NextWords, Prepare, Pretrain, Score, Substitutes
from elmokit.cli.models import Convert, Info, Push
from elmokit.cli.serve import Serve
from elmokit.cli.tasks import EvaluateTask, Fit, NoTask, Predict, with_settings_of
from elmokit.cli.vectors import Compare, Embed, Encode, Neighbors

Verb = (
    Prepare | Pretrain | Finetune | Evaluate | Embed | Encode | Score | Substitutes | NextWords | Compare | Neighbors
    | Probe | Wsd | Senses | Change | Fit | Predict | EvaluateTask | Convert | Push | Info | Serve
)  # fmt: skip

EXAMPLES_HEADING = "Examples, in a checkout of elmokit:"
# Verbs that resume an interrupted run when the same command is run again.
RESUMABLE = (Pretrain, Finetune, Embed, Encode, Fit)


def name_of(verb: type) -> str:
    """The name of a verb on the command line: `evaluate-task` of EvaluateTask."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", verb.__name__).lower()


def verbs_for(arguments: Sequence[str]) -> Any:
    """The union of the verbs, as tyro parses a command line with it.

    The verb that the command line names has its full help and examples, the others one paragraph for the list of
    verbs; `fit` has the options of the task that is named.
    """
    named, verbs = next(iter(arguments), ""), []
    for verb in get_args(Verb):
        name = name_of(verb)
        if verb is Fit:  # whose options depend on the task that is named first
            has_task = named == name and len(arguments) > 1 and not arguments[1].startswith("-")
            verb = with_settings_of(verb, arguments[1]) if has_task else cast(Any, verb)[NoTask]
        text = cleandoc((get_origin(verb) or verb).__doc__ or "")  # the origin of a generic class, which has the text
        if named == name:
            text = "\n    ".join([f"{text}\n\n{EXAMPLES_HEADING}", *EXAMPLES[name]])
        else:
            text = text.partition("\n\n")[0]
        verbs.append(Annotated[verb, subcommand(name, description=text)])
    return Union[tuple(verbs)]  # noqa: UP007 (made at run time)
