"""Examples for the help of each verb.

They run in a checkout as they are, also after those of the README, which are the same where they write the same files.
Tests run them in this order, since some read the output of an earlier one.
"""

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
    "evaluate": (
        f"elmokit evaluate {DATA}/heldout.txt",
        f"elmokit evaluate {DATA}/heldout.txt --model runs/tiny/model",
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
    "evaluate-task": (f"elmokit evaluate-task runs/tagger {DATA}/test.conllu",),
    "serve": (
        f"elmokit serve --corpus {DATA}/sentences.txt",
        "elmokit serve en-small --task-model runs/tagger --port 8080",
    ),
    "convert": ("elmokit convert en-small --to hdf5 --output runs/hdf5",),
    "push": ("elmokit push runs/tiny/model YOUR-NAME/tiny-elmo --private",),
}
