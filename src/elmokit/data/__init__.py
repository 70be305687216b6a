"""Text in files, however it is written there, and batches of its sentences.

- `TextFile`: text, found in directories, and how it is read, which `show_reading` prints
- `read_rows`, `write_table`, `is_table`: tables in files and in memory
- `TaggedFile`, `TaggedSentence`: annotated words, read and written
- `PackedBatch`: sentences to embed or to score, side by side; `chunks`: consecutive ones of about
  one size
- `prepare`: raw text to shards
"""

from elmokit.data.batches import PackedBatch, chunks
from elmokit.data.preparation import prepare
from elmokit.data.readers import TaggedFile, TaggedSentence
from elmokit.data.tables import is_table, read_rows, write_table
from elmokit.data.text_files import TextFile, show_reading

__all__ = [
    "PackedBatch",
    "TaggedFile",
    "TaggedSentence",
    "TextFile",
    "chunks",
    "is_table",
    "prepare",
    "read_rows",
    "show_reading",
    "write_table",
]
