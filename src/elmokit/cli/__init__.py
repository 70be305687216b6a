"""The command line `elmokit VERB`: argument parsing and exit codes."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence

import elmokit
from elmokit.cli.console import one_line, show_warning, spool_standard_input
from elmokit.cli.verbs import parse


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
