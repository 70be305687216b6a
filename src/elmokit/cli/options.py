"""Options that several verbs have, each with its help."""

from typing import Annotated, Literal

from tyro.conf import arg

# The default, None, is no news: the text says what happens without the option.
UNSET = arg(help_behavior_hint="")
Model = Annotated[
    str | None,
    arg(help="Directory or name of the model, or OWNER/NAME on the Hugging Face Hub; the bundled English one if none."),
    UNSET,
]
Device = Annotated[str | None, arg(help="cpu, cuda or cuda:N; the best there is when not given."), UNSET]
State = Literal["zeros", "warm", "carry"]
OwnState = Annotated[
    State | None, arg(help="LSTM state at the start of a sentence; the model's own policy when not given."), UNSET
]
OneLayer = Literal["mix", "average", "top"] | int
Overwrite = Annotated[bool, arg(help="Replace the output where there is one.")]
Tokenize = Annotated[
    bool, arg(help="Split the lines as the model's training text was; with --no-tokenize at white space.")
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "int8", "auto"],
    arg(
        help="Number type of the computation: float32 is exact, bfloat16 faster where the machine multiplies it (auto: "
        "bfloat16 there, float32 elsewhere), int8 faster still, but only on a CPU with AVX-512 VNNI."
    ),
]
