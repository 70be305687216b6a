"""Reads and writes text, tables and annotated files, and packs batches of sentences.

- `TextFile`: text files and how they are read, which `show_reading` prints
- `read_rows`, `write_table`, `is_table`: tables in files and in memory
- `TaggedFile`, `TaggedSentence`: annotated words, read and written
- `PackedBatch`: sentences to embed or to score, side by side
- `chunks`: lists of consecutive sentences of about equal size
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
