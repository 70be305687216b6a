"""Corpora, token streams, text preparation, and readers of annotated data."""

from elmokit.data.chunking import chunks
from elmokit.data.corpus import CorpusReport, Position, SentenceReader, check_corpus, find_files
from elmokit.data.fasta import are_fasta, read_identifiers, read_sequences
from elmokit.data.preparation import prepare
from elmokit.data.readers import (
    COLUMN_NAMES,
    Layout,
    TaggedSentence,
    conllu_lines,
    is_conllu_token,
    read_tagged,
    write_predictions,
)
from elmokit.data.streams import (
    PackedBatch,
    PendingRows,
    PendingText,
    SentenceStream,
    TrainingStream,
    assign_rows,
    draw_hidden,
    embedding_batch,
    number_words,
    scoring_batch,
    sentence_batches,
)
from elmokit.data.tables import CSV, JSON_LINES, PARQUET, TABLES, is_empty, read_records, row_of
from elmokit.data.text_checks import has_attached_mark
from elmokit.data.text_files import (
    check_language,
    file_tokenizers,
    line_tokenizer,
    option_of_shard,
    read_sentences,
    read_texts,
    tokenized_files,
    tokenizer_of_shard,
)

__all__ = [
    "COLUMN_NAMES",
    "CSV",
    "JSON_LINES",
    "PARQUET",
    "TABLES",
    "CorpusReport",
    "Layout",
    "PackedBatch",
    "PendingRows",
    "PendingText",
    "Position",
    "SentenceReader",
    "SentenceStream",
    "TaggedSentence",
    "TrainingStream",
    "are_fasta",
    "assign_rows",
    "check_corpus",
    "check_language",
    "chunks",
    "conllu_lines",
    "draw_hidden",
    "embedding_batch",
    "file_tokenizers",
    "find_files",
    "has_attached_mark",
    "is_conllu_token",
    "is_empty",
    "line_tokenizer",
    "number_words",
    "option_of_shard",
    "prepare",
    "read_identifiers",
    "read_records",
    "read_sentences",
    "read_sequences",
    "read_tagged",
    "read_texts",
    "row_of",
    "scoring_batch",
    "sentence_batches",
    "tokenized_files",
    "tokenizer_of_shard",
    "write_predictions",
]
