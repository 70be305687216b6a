"""Options shared by several verbs, each with its help text, and the names of all options of a verb."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

from tyro.conf import DisallowNone, Positional, PositionalMetavarFromFieldName, arg

from elmokit import settings

TYRO_CONFIG = (DisallowNone, PositionalMetavarFromFieldName)  # of all command lines of elmokit
UNSET = arg(help_behavior_hint="")  # no "(default: None)": the help text itself states the default


def state_defaults_in_text(settings: type) -> None:
    """Apply `UNSET` to settings that default to None or (): their help text says what that means, "(default: ...)"."""
    types = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        if field.default in (None, ()):
            settings.__annotations__[field.name] = Annotated[types[field.name], UNSET]


def option_names(verb: Any) -> dict[str, str]:
    """The options of a verb by their names in Python, such as --text-field by text_field, where the two differ."""
    names: dict[str, str] = {}
    types = get_type_hints(type(verb), include_extras=True)
    for field in fields(verb):
        if is_dataclass(value := getattr(verb, field.name)):
            names |= option_names(value)
        elif "_" in field.name and Positional not in getattr(types[field.name], "__metadata__", ()):
            names[field.name] = "--" + field.name.replace("_", "-")
    return names


def typed_options(arguments: Iterable[str]) -> dict[str, str]:
    """As `option_names`, for the options in a command line."""
    options = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    return {option[2:].replace("-", "_"): option for option in options if "-" in option[2:]}


Model = Annotated[
    str | None,
    arg(
        help="Model: a directory, a bundled name, or OWNER/NAME (also hf:OWNER/NAME) on the Hugging Face Hub "
        "(default: bundled English)."
    ),
    UNSET,
]
Device = Annotated[str | None, arg(help="Device: cpu, cuda or cuda:N (default: a GPU if there is one)."), UNSET]
State = Literal["zeros", "warm", "carry"]
OptionalState = Annotated[
    State | None,
    arg(
        help="Initial state of a sentence: zeros, the model's warm state, or the final state of the sentence "
        "before (default: the model's policy)."
    ),
    UNSET,
]
OneLayer = Literal["mix", "average", "sum", "top"] | int
Overwrite = Annotated[bool, arg(help="Replace an existing output.")]
# Every verb reads text by this rule.
Tokenize = Annotated[
    bool,
    arg(
        help="Raw text: split it with the model's tokenizer. With --no-tokenize, the text is already tokenized: its "
        "words are separated by spaces. Output of `elmokit prepare` is recognized as such."
    ),
]
Language = Annotated[
    str | None,
    arg(help="Code of the language whose rules split raw lines into sentences (default: the tokenizer's rules)."),
    UNSET,
]
ComputeDtype = Annotated[
    Literal["float32", "bfloat16", "int8", "auto"],
    arg(
        help="Number type to compute in: float32 (the most precise), bfloat16 (faster on hardware that supports it), "
        "int8 (faster still, on a CPU; needs the compiled kernels), or auto (bfloat16 where the hardware supports it, "
        "else float32)."
    ),
]
StorageDtype = Annotated[settings.StorageDtype, arg(help="Number type on disk.")]
