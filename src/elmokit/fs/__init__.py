"""Files and directories: streamed reading, atomic writing, locks.

- `read_lines`, `read_line_blocks`, `read_blocks`: text, lines and bytes of plain, .gz or .zst files
- `read_json`, `write_json`: JSON, untrusted when read
- `suffixes_of`: kind and compression by a file's name; `open_regular`: refuses pipes
- `atomic_path`, `atomic_directory`, `create_bytes`, `publish_directory`: outputs that have their
  names when they are complete
- `check_output`: refuses an output before the work begins; `OVERWRITE`: what such messages advise
- `directory_lock`: one writer in a directory
- `remove_leftovers`, `remove_directory`: of killed processes; whole or not at all
- `require_pyarrow`: pyarrow, or how to install it
"""

from elmokit.fs.arrow import require_pyarrow
from elmokit.fs.atomic import (
    OVERWRITE,
    atomic_directory,
    atomic_path,
    check_output,
    create_bytes,
    publish_directory,
    remove_directory,
    remove_leftovers,
    write_json,
)
from elmokit.fs.json_files import read_json
from elmokit.fs.lock import directory_lock
from elmokit.fs.reading import (
    open_regular,
    read_blocks,
    read_line_blocks,
    read_lines,
    suffixes_of,
)

__all__ = [
    "OVERWRITE",
    "atomic_directory",
    "atomic_path",
    "check_output",
    "create_bytes",
    "directory_lock",
    "open_regular",
    "publish_directory",
    "read_blocks",
    "read_json",
    "read_line_blocks",
    "read_lines",
    "remove_directory",
    "remove_leftovers",
    "require_pyarrow",
    "suffixes_of",
    "write_json",
]
