"""Files and directories: streamed reading, atomic writing, locks.

- `read_lines`, `write_lines`, `read_blocks`: lines and bytes of plain, .gz or .zst files
- `read_json`: JSON that is not trusted
- `suffixes_of`: kind and compression by a file's name
- `atomic_path`, `atomic_directory`: outputs that appear under their names when complete
- `TABLES`, `COLUMNS`: suffixes of tables that are written, and of files with a word on each line
- `check_output`: refuses an output before the work begins
- `directory_lock`: exclusive directory lock; cleans up after killed writers
- `remove_directory`: removes a directory whole or not at all
"""

from elmokit.fs.atomic import (
    COLUMNS,
    TABLES,
    atomic_directory,
    atomic_path,
    check_output,
    directory_lock,
    remove_directory,
    write_lines,
)
from elmokit.fs.reading import read_blocks, read_json, read_lines, suffixes_of

__all__ = [
    "COLUMNS",
    "TABLES",
    "atomic_directory",
    "atomic_path",
    "check_output",
    "directory_lock",
    "read_blocks",
    "read_json",
    "read_lines",
    "remove_directory",
    "suffixes_of",
    "write_lines",
]
