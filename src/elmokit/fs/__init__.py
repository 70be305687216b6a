"""Files and directories: streamed reading, atomic writing, locks.

- `read_lines`, `read_line_blocks`, `read_blocks`: text, lines and bytes of plain, .gz or .zst files
- `read_json`, `write_json`: JSON, untrusted when read
- `suffixes_of`: kind and compression by a file's name
- `atomic_path`, `atomic_directory`, `create_bytes`, `publish_directory`: outputs that have their
  names when they are complete
- `check_output`: refuses an output before the work begins
- `directory_lock`: one writer in a directory, who removes what killed ones left there
- `remove_directory`: whole or not at all
"""

from elmokit.fs.atomic import (
    atomic_directory,
    atomic_path,
    check_output,
    create_bytes,
    directory_lock,
    publish_directory,
    remove_directory,
    write_json,
)
from elmokit.fs.json_files import read_json
from elmokit.fs.reading import (
    read_blocks,
    read_line_blocks,
    read_lines,
    suffixes_of,
)

__all__ = [
    "atomic_directory",
    "atomic_path",
    "check_output",
    "create_bytes",
    "directory_lock",
    "publish_directory",
    "read_blocks",
    "read_json",
    "read_line_blocks",
    "read_lines",
    "remove_directory",
    "suffixes_of",
    "write_json",
]
