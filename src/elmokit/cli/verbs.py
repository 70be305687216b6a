"""The verbs: frozen dataclasses, whose fields are the options and whose docstrings are the help.

A verb imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Annotated, Any, Union, cast, get_origin

import tyro
from tyro.conf import subcommand

from elmokit.cli.analysis import Change, Compare, Neighbors, Probe, Senses
from elmokit.cli.language_model import (
    Evaluate,
    Finetune,
    NextWords,
    Prepare,
    Pretrain,
    Score,
    Substitutes,
)
from elmokit.cli.models import Convert, Info, Serve
from elmokit.cli.options import TYRO_CONFIG
from elmokit.cli.tasks import Fit, NoTask, Predict, with_settings_of
from elmokit.cli.vectors import Embed, Encode

DESCRIPTION = (
    "Pretrain, load and use ELMo, deep contextual word vectors. `elmokit COMMAND --help` lists the "
    "options of a command, `elmokit --version` prints the version. As the name of a text file, - "
    "means standard input."
)
HELP = {"-h", "--help"}


def name_of(verb: type) -> str:
    """The name of a verb on the command line: `next-words` of NextWords."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", verb.__name__).lower()


# In this order, each example of the help finds the files that earlier ones wrote.
VERBS: dict[str, Any] = {
    name_of(verb): verb
    for verb in (
        Prepare,
        Pretrain,
        Finetune,
        Embed,
        Encode,
        Score,
        Substitutes,
        NextWords,
        Compare,
        Neighbors,
        Senses,
        Change,
        Probe,
        Fit,
        Predict,
        Evaluate,
        Convert,
        Info,
        Serve,
    )
}


def help_of(verb: Any) -> str:
    """The text of a verb's help; it is that of the origin of a generic class, such as Fit."""
    return cleandoc((get_origin(verb) or verb).__doc__ or "")


def parse(arguments: Sequence[str]) -> Any:
    """The verb that a command line names, with its options.

    Raises:
        SystemExit: After help, which `elmokit help VERB`, and no argument at all, ask for too; or
            an option is wrong.
        ValueError: There is no such verb.
    """
    if not arguments or arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    name, *rest = arguments
    options: dict[str, Any] = {"config": TYRO_CONFIG}
    if name in HELP:
        # With the first paragraph of each verb. Fit has the options of a task, which is not named.
        verbs = tuple(
            Annotated[
                Fit[NoTask] if verb is Fit else verb,
                subcommand(name, description=help_of(verb).partition("\n\n")[0]),
            ]
            for name, verb in VERBS.items()
        )
        every: Any = Union[verbs]  # noqa: UP007
        return tyro.cli(every, prog="elmokit", description=DESCRIPTION, args=arguments, **options)
    if name not in VERBS:
        raise ValueError(f"there is no command {name!r}; there are {', '.join(VERBS)}")
    verb = VERBS[name]
    if verb is Fit:
        has_task = rest and not rest[0].startswith("-")
        verb = with_settings_of(verb, rest[0]) if has_task else cast(Any, verb)[NoTask]
    if HELP & {*rest}:
        rest = ["--help"]  # alone, since what was given is left out of the usage
    prog = f"elmokit {name}"
    return tyro.cli(verb, prog=prog, description=help_of(verb), args=rest, **options)
