"""Text files to batches: opening, tables, annotated words, corpora, streams, preparation.

- `find_files`, `open_texts`, `TextFile`: files of text and how each is read, which `show_reading`
  prints; `shard_options`: how `prepare` made a shard; `Fasta`: proteins
- `read_records`, `row_of`, `is_empty`, `TABLES`, `CSV`, `JSON_LINES`, `PARQUET`: tables
- `Layout`, `read_tagged`, `TaggedSentence`, `write_predictions`, `conllu_lines`: annotated words
- `check_corpus`, `CorpusReport`, `SentenceReader`, `Position`: a corpus in shuffled order
- `TrainingStream`, `PendingRows`: windows of rows of text; `SentenceStream`, `PendingText`: batches
  of whole sentences
- `PackedBatch` by `embedding_batch` or `scoring_batch`; `assign_rows`, `number_words`,
  `sentence_batches`, `chunks`: its parts
- `prepare`: raw text to shards
"""

from elmokit.data.corpus import CorpusReport, Position, SentenceReader, check_corpus, find_files
from elmokit.data.fasta import Fasta
from elmokit.data.preparation import prepare
from elmokit.data.readers import (
    Layout,
    TaggedSentence,
    conllu_lines,
    read_tagged,
    write_predictions,
)
from elmokit.data.showing import show_reading
from elmokit.data.streams import (
    PackedBatch,
    PendingRows,
    PendingText,
    SentenceStream,
    TrainingStream,
    assign_rows,
    chunks,
    embedding_batch,
    number_words,
    scoring_batch,
    sentence_batches,
)
from elmokit.data.tables import CSV, JSON_LINES, PARQUET, TABLES, is_empty, read_records, row_of
from elmokit.data.text_files import TextFile, open_texts, shard_options

__all__ = [
    "CSV",
    "JSON_LINES",
    "PARQUET",
    "TABLES",
    "CorpusReport",
    "Fasta",
    "Layout",
    "PackedBatch",
    "PendingRows",
    "PendingText",
    "Position",
    "SentenceReader",
    "SentenceStream",
    "TaggedSentence",
    "TextFile",
    "TrainingStream",
    "assign_rows",
    "check_corpus",
    "chunks",
    "conllu_lines",
    "embedding_batch",
    "find_files",
    "is_empty",
    "number_words",
    "open_texts",
    "prepare",
    "read_records",
    "read_tagged",
    "row_of",
    "scoring_batch",
    "sentence_batches",
    "shard_options",
    "show_reading",
    "write_predictions",
]
