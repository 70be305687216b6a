"""The command line `elmokit VERB`: the verbs, argument parsing and exit codes.

A verb is a frozen dataclass, whose fields are its options and whose docstring is its help. It
imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from inspect import cleandoc
from typing import Annotated, Any, Union, cast, get_origin

import tyro
from tyro.conf import subcommand

import elmokit
from elmokit.cli.analysis import Change, Compare, Neighbors, Probe, Senses
from elmokit.cli.console import one_line, show_warning, spool_standard_input
from elmokit.cli.models import (
    Convert,
    Evaluate,
    Finetune,
    Info,
    NextWords,
    Prepare,
    Pretrain,
    Score,
    Serve,
    Substitutes,
)
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
    """The help text of a verb, or of the origin of a generic one such as Fit."""
    return cleandoc((get_origin(verb) or verb).__doc__ or "")


def parse(arguments: Sequence[str]) -> Any:
    """The verb that a command line names, with its options.

    Raises:
        SystemExit: After printing help (also for `help VERB` or no arguments), or an option is
            wrong.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    With ELMOKIT_DEBUG=1 in the environment, errors are raised with their traceback, and warnings
    show the line of code that issued them.

    Args:
        arguments: The command line after the program's name; None: that of this process.

    Returns:
        The exit code: 0 on success, 2 on bad input, 130 if interrupted, and 141 if the output was
        closed.

    Raises:
        SystemExit: After help (0), and after an error in the options (2).
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Idle OpenMP threads would otherwise spin on the cores that compute the two directions.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    is_debugging = os.environ.get("ELMOKIT_DEBUG") == "1"
    try:
        if arguments == ["--version"]:
            print(f"elmokit {elmokit.__version__}")
        else:
            verb = parse(arguments)
            with warnings.catch_warnings(), spool_standard_input(verb) as with_files:
                warnings.showwarning = warnings.showwarning if is_debugging else show_warning
                with_files.run()
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        print("; ".join(filter(None, ("elmokit: interrupted", str(error)))), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what Python prints when it ends
        return 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        if is_debugging:
            raise
        print(f"elmokit: error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0
