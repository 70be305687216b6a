"""The verbs: one frozen dataclass each, whose fields are the options and whose docstrings are the help text.

A verb imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Annotated, Any, Union, cast, get_args, get_origin

from tyro.conf import subcommand

from elmokit.cli.analysis import Change, Probe, Senses, Wsd
from elmokit.cli.language_model import Evaluate, Finetune, NextWords, Prepare, Pretrain, Score, Substitutes
from elmokit.cli.models import Convert, Info, Serve
from elmokit.cli.tasks import Fit, NoTask, Predict, with_settings_of
from elmokit.cli.vectors import Compare, Embed, Encode, Neighbors

Verb = (
    Prepare | Pretrain | Finetune | Evaluate | Embed | Encode | Score | Substitutes | NextWords | Compare | Neighbors
    | Probe | Wsd | Senses | Change | Fit | Predict | Convert | Info | Serve
)  # fmt: skip

EXAMPLES_HEADING = "Examples, in a checkout of elmokit:"
# They run in a checkout as they are, also after those of the README, which are the same where they write the same
# files. Tests run them in this order, since some read the output of an earlier one.
DATA = "examples/data"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "info": ("elmokit info",),
    "embed": (
        f"elmokit embed {DATA}/sentences.txt --output runs/vectors",
        f"elmokit embed {DATA}/sentences.txt --output runs/layers.hdf5 --layers all",
    ),
    "encode": (f"elmokit encode {DATA}/sentences.txt --output runs/sentences.npy",),
    "compare": (
        'elmokit compare play "They play chess" "The boys play in the street" '
        '--other "The play has five acts" "He wrote the play"',
    ),
    "neighbors": (f'elmokit neighbors play --in "The play was a success" --corpus {DATA}/sentences.txt',),
    "senses": (f"elmokit senses play --corpus {DATA}/sentences.txt --output runs/senses",),
    "change": (f"elmokit change mouse house --first {DATA}/mouse-1950.txt --second {DATA}/mouse-2000.txt",),
    "prepare": (f"elmokit prepare {DATA}/raw/*.txt --exclude {DATA}/heldout.txt --output runs/shards",),
    "pretrain": (
        f"elmokit pretrain --corpus runs/shards --heldout {DATA}/heldout.txt --preset tiny --epochs 10 "
        "--output runs/tiny",
    ),
    "finetune": (
        f"elmokit finetune --corpus runs/shards --heldout {DATA}/heldout.txt --max-words 10000 --output runs/speeches",
    ),
    "score": (
        f"elmokit score {DATA}/sentences.txt --output runs/scores.jsonl",
        f"elmokit score {DATA}/sentences.txt --output runs/surprisal.tsv --tsv --bits",
    ),
    "substitutes": ('elmokit substitutes "The house stands near the river." --positions 1 5',),
    "next-words": ('elmokit next-words "Once upon a time there was a"',),
    "probe": (f"elmokit probe {DATA}/train.conllu {DATA}/dev.conllu --test {DATA}/test.conllu",),
    "wsd": (f"elmokit wsd {DATA}/coarse-wsd",),
    "fit": (f"elmokit fit tagging {DATA}/train.conllu {DATA}/dev.conllu --batch-size 4 --output runs/tagger",),
    "predict": (
        f"elmokit predict runs/tagger {DATA}/test.conllu --output runs/tagged.conllu",
        f"elmokit predict runs/tagger {DATA}/sentences.txt --text --output runs/tagged.jsonl",
    ),
    "evaluate": (
        f"elmokit evaluate {DATA}/heldout.txt --model runs/tiny/model",
        f"elmokit evaluate {DATA}/test.conllu --model runs/tagger",
    ),
    "serve": (
        f"elmokit serve --corpus {DATA}/sentences.txt",
        "elmokit serve en-small --task-model runs/tagger --port 8080",
    ),
    "convert": ("elmokit convert en-small --to hdf5 --output runs/hdf5",),
}


def name_of(verb: type) -> str:
    """The name of a verb on the command line: `next-words` of NextWords."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", verb.__name__).lower()


def verbs_for(arguments: Sequence[str]) -> Any:
    """The union of the verbs, as tyro parses a command line with it.

    The verb that the command line names has its full help and examples, the others one paragraph for the list of
    verbs; `fit` has the options of the task that is named.
    """
    named, verbs = next(iter(arguments), ""), []
    for verb in get_args(Verb):
        name = name_of(verb)
        if verb is Fit:  # whose options depend on the task that is named first
            has_task = named == name and len(arguments) > 1 and not arguments[1].startswith("-")
            verb = with_settings_of(verb, arguments[1]) if has_task else cast(Any, verb)[NoTask]
        text = cleandoc((get_origin(verb) or verb).__doc__ or "")  # the origin of a generic class, which has the text
        if named == name:
            text = "\n    ".join([f"{text}\n\n{EXAMPLES_HEADING}", *EXAMPLES[name]])
        else:
            text = text.partition("\n\n")[0]
        verbs.append(Annotated[verb, subcommand(name, description=text)])
    return Union[tuple(verbs)]  # noqa: UP007 (made at run time)
