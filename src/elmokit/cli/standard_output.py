"""`-` as the output of a verb that writes lines: standard output, which then holds nothing else."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from elmokit.cli.standard_input import STANDARD_STREAM


@contextmanager
def output_file(output: Path, suffix: str = ".jsonl") -> Iterator[Path]:
    """The file for a verb to write to; for `-` a temporary one, which is copied to standard output when complete.

    For `-`, what the `with` block prints goes to standard error.

    Args:
        output: The option of the verb.
        suffix: That of the temporary file.

    Yields:
        `output`, or the temporary file.
    """
    if output != STANDARD_STREAM:
        yield output
        return
    with TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True) as directory:
        file = Path(directory) / f"standard-output{suffix}"
        with redirect_stdout(sys.stderr):
            yield file
        with file.open("rb") as lines:
            shutil.copyfileobj(lines, sys.stdout.buffer)
        sys.stdout.buffer.flush()
