"""The command line: `elmokit VERB`, its exit codes and its errors of one line."""

import os
import sys
from collections.abc import Sequence

import tyro

import elmokit
from elmokit.cli.messages import is_debugging, one_line, warnings_of_one_line
from elmokit.cli.verbs import RESUMED, Verb

DESCRIPTION = (
    "Pretrain, load and use ELMo: deep contextual word vectors. `elmokit VERB --help` explains the options of a verb, "
    "`elmokit --version` prints the version."
)


def _run(verb: Verb) -> int:
    try:
        with warnings_of_one_line():
            verb.run()
    except KeyboardInterrupt:
        how = "; the same command goes on where this one stopped" if isinstance(verb, RESUMED) else ""
        print(f"elmokit: interrupted{how}", file=sys.stderr)
        return 130
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0 done, 2 bad input, 130 interrupted.

    With ELMOKIT_DEBUG=1 in the environment, errors keep their traceback, and warnings their place.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # torch's idle threads would spin on the cores that the two directions compute on
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if list(arguments) == ["--version"]:
        print(f"elmokit {elmokit.__version__}")
        return 0
    try:
        verb = tyro.cli(
            Verb,
            prog="elmokit",
            description=DESCRIPTION,
            args=arguments,
            config=(tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName),
        )
        return _run(verb)
    except BrokenPipeError:  # whoever reads the output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if is_debugging():
            raise
        print(f"elmokit: error: {one_line(error)}", file=sys.stderr)
        return 2
