"""The command line `elmokit VERB`: argument parsing, exit codes and one-line error messages."""

import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import tyro

import elmokit
from elmokit.cli.messages import (
    discard_output,
    flush_output,
    is_debugging,
    one_line,
    one_line_warnings,
    reopen_closed_streams,
)
from elmokit.cli.options import TYRO_CONFIG, option_names, typed_options
from elmokit.cli.standard_input import reads_stream, spool_standard_input
from elmokit.cli.verbs import RESUMABLE, Verb, verbs_for

DESCRIPTION = (
    "Pretrain, load and use ELMo, deep contextual word vectors. `elmokit COMMAND --help` lists the options of a "
    "command, `elmokit --version` prints the version. As the name of a text file, - means standard input."
)


def _parsed(arguments: Sequence[str]) -> Verb:
    """The verb with its options. SystemExit after help, and after an error in the options."""
    try:
        return tyro.cli(
            verbs_for(arguments),
            prog="elmokit",
            description=DESCRIPTION,
            args=arguments,
            config=TYRO_CONFIG,
        )
    except SystemExit:
        flush_output()
        raise


def _run(verb: Verb) -> int:
    can_resume = isinstance(verb, RESUMABLE) and not reads_stream(verb)
    try:
        with one_line_warnings(option_names(verb)), spool_standard_input(verb) as with_files:
            with_files.run()
    except KeyboardInterrupt as error:
        advice = "run the same command again to resume" if can_resume else ""
        print("elmokit: " + "; ".join(filter(None, ("interrupted", str(error) or advice))), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        discard_output()
        if not can_resume:
            return 0
        print("elmokit: stopped, as its output was closed; run the same command again to resume", file=sys.stderr)
        return 128 + signal.SIGPIPE
    flush_output()
    return 0


def _escape_unprintable() -> None:
    """Print characters that the terminal's encoding lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    With ELMOKIT_DEBUG=1 in the environment, errors are raised with their traceback, and warnings show the line of code
    that issued them.

    Args:
        arguments: The command line after the program's name; None: that of this process.

    Returns:
        The exit code: 0 on success, 2 on bad input, 130 if interrupted, and 141 if a job that can be resumed was
        stopped because its output was closed.
    """
    reopen_closed_streams()
    _escape_unprintable()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Idle OpenMP threads would otherwise spin on the cores that compute the two directions.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = typed_options(arguments)  # for errors that settings raise before there is a verb
    try:
        if arguments == ["--version"]:
            print(f"elmokit {elmokit.__version__}")
            flush_output()
            return 0
        verb = _parsed(arguments)
        options = option_names(verb)
        return _run(verb)
    except BrokenPipeError:  # while printing the version, help or the last lines of a job that is complete
        discard_output()
        return 0
    except (ValueError, OSError) as error:
        if is_debugging():
            raise
        with suppress(OSError):
            flush_output()
        print(f"elmokit: error: {one_line(error, options)}", file=sys.stderr)
        return 2
