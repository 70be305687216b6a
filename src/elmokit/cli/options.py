"""Options shared by several verbs, each with its help text."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

from tyro.conf import DisallowNone, Positional, PositionalMetavarFromFieldName, arg

from elmokit import settings

TYRO_CONFIG = (DisallowNone, PositionalMetavarFromFieldName)  # for all command lines of elmokit
UNSET = arg(help_behavior_hint="")  # no "(default: None)": the help text itself states the default


def state_defaults_in_text(settings: type) -> None:
    """Hide defaults None and (), which the help text explains."""
    types = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        if field.default in (None, ()):
            settings.__annotations__[field.name] = Annotated[types[field.name], UNSET]


Model = Annotated[
    str | None,
    arg(
        help="Model: a directory, a bundled name, or OWNER/NAME (also hf:OWNER/NAME) on the "
        "Hugging Face Hub (default: bundled English)."
    ),
    UNSET,
]
Device = Annotated[
    str | None, arg(help="Device: cpu, cuda or cuda:N (default: a GPU if there is one)."), UNSET
]
OptionalState = Annotated[
    settings.StatePolicy | None,
    arg(
        help="Initial state of a sentence: zeros, the model's warm state, or the final state of "
        "the sentence before (default: the model's policy)."
    ),
    UNSET,
]
Layers = Literal["mix", "average", "sum", "top", "all"] | int
LAYERS = (
    "Representation: the model's mix, the average, the sum, the top, all layers, or the number of "
    "a layer, 0 for the tokens, -1 for the top"
)
ONE_LAYER = (
    "Representation: the model's mix, the average, the sum, the top, or the number of a layer"
)
OneLayer = Annotated[
    Literal["mix", "average", "sum", "top"] | int,
    arg(help=f"{ONE_LAYER} (0: the tokens)."),
]
CorpusLayers = Annotated[
    Literal["use", "mix", "average", "sum", "top"] | int | None,
    arg(
        help="Representation: use, the top layer beside the mean vector of the text; or of the "
        "word alone the model's mix, the average, the sum, the top, or the number of a layer "
        "(default: use, for change and uses of any word top; or the one that is stored)."
    ),
    UNSET,
]
Word = Annotated[
    Positional[str],
    arg(
        help="Word to look up; commas separate its forms, as in play,plays,played, and quotation "
        "marks hold a phrase. In sentences without an exact match, the case of letters is ignored."
    ),
]
Corpus = Annotated[
    Path,
    arg(
        help="Text (plain, .gz or .zst), one sentence per line, or a directory written by "
        "`elmokit prepare`; or one written by `elmokit embed`, whose vectors are then read, not "
        "computed."
    ),
]
Overwrite = Annotated[bool, arg(help="Replace an existing output.")]
Json = Annotated[bool, arg(help="Print the result as JSON.")]
# Every verb reads text by this rule.
Tokenize = Annotated[
    bool,
    arg(
        help="Raw text: split it with the model's tokenizer. With --no-tokenize, the text is "
        "already tokenized: its words are separated by spaces. Output of `elmokit prepare` is "
        "recognized as such."
    ),
]
Output = Annotated[
    Path | None,
    arg(
        help="File for a table (.csv, .tsv, .jsonl or .parquet) with a row for each use, or of "
        "change for each word; or for a picture (.svg, .png or .pdf), except of neighbors; or of "
        "senses for a page with the maps of all layers (.html)."
    ),
    UNSET,
]
Column = Annotated[
    str | None,
    arg(
        help="Column of the texts if the file is a table: CSV, TSV, JSON lines or Parquet "
        "(default: text)."
    ),
    UNSET,
]
Language = Annotated[
    str | None,
    arg(
        help="Code of the language whose rules split raw lines into sentences (default: the "
        "model's)."
    ),
    UNSET,
]
ComputeDtype = Annotated[
    Literal["float32", "bfloat16", "int8", "auto"],
    arg(
        help="Number type to compute in: float32 (the most precise), bfloat16 (faster on hardware "
        "that supports it), int8 (faster still, on a CPU; needs the compiled kernels), or auto "
        "(bfloat16 where the hardware supports it, else float32)."
    ),
]
StorageDtype = Annotated[settings.StorageDtype, arg(help="Number type on disk.")]
