"""The verbs: one frozen dataclass each, whose fields are the options and whose docstrings are the
help text.

A verb imports the function that does its work when it runs, so that `--help` does not load PyTorch.
"""

import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from inspect import cleandoc
from io import StringIO
from typing import Annotated, Any, Union, cast, get_args, get_origin

import tyro
from tyro.conf import subcommand

from elmokit.cli.analysis import Change, Probe, Senses
from elmokit.cli.console import did_you_mean, usage_error
from elmokit.cli.language_model import (
    Evaluate,
    Finetune,
    NextWords,
    Prepare,
    Pretrain,
    Score,
    Substitutes,
)
from elmokit.cli.models import Convert, Info, Serve
from elmokit.cli.options import TYRO_CONFIG
from elmokit.cli.tasks import Fit, NoTask, Predict, with_settings_of
from elmokit.cli.vectors import Compare, Embed, Encode, Neighbors

Verb = (
    Prepare
    | Pretrain
    | Finetune
    | Evaluate
    | Embed
    | Encode
    | Score
    | Substitutes
    | NextWords
    | Compare
    | Neighbors
    | Probe
    | Senses
    | Change
    | Fit
    | Predict
    | Convert
    | Info
    | Serve
)

DESCRIPTION = (
    "Pretrain, load and use ELMo, deep contextual word vectors. `elmokit COMMAND --help` lists the "
    "options of a command, `elmokit --version` prints the version. As the name of a text file, - "
    "means standard input."
)
EXAMPLES_HEADING = "Examples, in a checkout of elmokit:"
# They run in a checkout as they are, also after those of the README, which are the same where they
# write the same files. Tests run them in this order, since some read the output of an earlier one.
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
    "neighbors": (
        f'elmokit neighbors play --in "The play was a success" --corpus {DATA}/sentences.txt',
    ),
    "senses": (f"elmokit senses play --corpus {DATA}/sentences.txt --output runs/senses.html",),
    "change": (
        f"elmokit change mouse house --first {DATA}/mouse-1950.txt --second {DATA}/mouse-2000.txt",
    ),
    "prepare": (
        f"elmokit prepare {DATA}/raw/*.txt --exclude {DATA}/heldout.txt --output runs/shards",
    ),
    "pretrain": (
        f"elmokit pretrain --corpus runs/shards --heldout {DATA}/heldout.txt --preset tiny "
        "--epochs 10 --output runs/tiny",
    ),
    "finetune": (
        f"elmokit finetune --corpus runs/shards --heldout {DATA}/heldout.txt --max-words 10000 "
        f"--output runs/speeches",
    ),
    "score": (
        f"elmokit score {DATA}/sentences.txt --output runs/scores.jsonl",
        f"elmokit score {DATA}/sentences.txt --output runs/surprisal.tsv --tsv --bits",
    ),
    "substitutes": ('elmokit substitutes "The house stands near the river." --positions 1 5',),
    "next-words": ('elmokit next-words "Once upon a time there was a"',),
    "probe": (f"elmokit probe {DATA}/train.conllu {DATA}/dev.conllu --test {DATA}/test.conllu",),
    "fit": (
        f"elmokit fit tagging {DATA}/train.conllu {DATA}/dev.conllu --batch-size 4 --output "
        f"runs/tagger",
    ),
    "predict": (
        f"elmokit predict {DATA}/test.conllu --model runs/tagger --output runs/tagged.conllu",
        f"elmokit predict {DATA}/sentences.txt --model runs/tagger --text --output "
        f"runs/tagged.jsonl",
    ),
    "evaluate": (
        f"elmokit evaluate {DATA}/heldout.txt --model runs/tiny/model",
        f"elmokit evaluate {DATA}/test.conllu --model runs/tagger",
    ),
    "serve": (
        f"elmokit serve --corpus {DATA}/sentences.txt",
        "elmokit serve --model en-small --task-model runs/tagger --port 8080",
    ),
    "convert": ("elmokit convert --model en-small --to hdf5 --output runs/hdf5",),
}


def name_of(verb: type) -> str:
    """The name of a verb on the command line: `next-words` of NextWords."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", verb.__name__).lower()


HELP = {"-h", "--help"}
VERBS = {name_of(verb): verb for verb in get_args(Verb)}


def _help(verb: Any) -> str:
    """The text of a verb's help; it is that of the origin of a generic class, such as Fit."""
    return cleandoc((get_origin(verb) or verb).__doc__ or "")


def _parser(arguments: Sequence[str]) -> partial[Any]:
    """The parser of a command line, which is that of the verb that it names, or else of the list of
    all verbs.
    """
    options: dict[str, Any] = {"config": TYRO_CONFIG}
    name, *rest = arguments
    verb: Any = VERBS.get(name)
    if name in HELP:
        # The first paragraph of each verb. Fit has the options of a task, which is not named here.
        each = ((name, Fit[NoTask] if verb is Fit else verb) for name, verb in VERBS.items())
        verbs = (
            Annotated[verb, subcommand(name, description=_help(verb).partition("\n\n")[0])]
            for name, verb in each
        )
        every: Any = Union[tuple(verbs)]  # noqa: UP007
        return partial(
            tyro.cli, every, prog="elmokit", description=DESCRIPTION, args=arguments, **options
        )
    if verb is None:
        raise ValueError(
            f"there is no command {name}{did_you_mean(name, VERBS, 'elmokit --help lists them')}"
        )
    if verb is Fit:
        has_task = rest and not rest[0].startswith("-")
        verb = with_settings_of(verb, rest[0]) if has_task else cast(Any, verb)[NoTask]
    if HELP & {*rest}:
        rest = ["--help"]  # alone, since what was given is left out of the usage
    text = "\n    ".join([f"{_help(verb)}\n\n{EXAMPLES_HEADING}", *EXAMPLES[name]])
    return partial(tyro.cli, verb, prog=f"elmokit {name}", description=text, args=rest, **options)


def parse(arguments: Sequence[str]) -> Any:
    """The verb that a command line names, with its options.

    Raises:
        SystemExit: After help, which `elmokit help VERB`, and no argument at all, ask for too.
        ValueError: There is no such verb, or an option is wrong.
    """
    if not arguments or arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    parser = _parser(arguments)
    if HELP & {*arguments}:
        return parser()
    with redirect_stdout(StringIO()) as text, redirect_stderr(StringIO()) as box:
        with suppress(SystemExit):
            return parser()
        with suppress(SystemExit):
            parser(args=["--help"])
    options = re.findall(r"--[a-z][a-z-]*", text.getvalue())
    raise ValueError(usage_error(box.getvalue(), arguments, options))
