"""Files and directories: streamed reading, atomic writing, locks, and the formats that several
packages read.
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
from elmokit.fs.lock import only_one_in
from elmokit.fs.reading import (
    crc32_of,
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
    "crc32_of",
    "create_bytes",
    "only_one_in",
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
