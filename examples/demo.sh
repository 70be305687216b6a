#!/usr/bin/env bash
# Real vectors of real sentences from the bundled English model: make demo. Only the installation needs a network.
set -euo pipefail
cd "$(dirname "$0")/.."

show() { # a command as one would type it, and what it prints
    local argument line="$"
    for argument; do
        [[ $argument == *" "* ]] && argument="\"$argument\""
        line+=" $argument"
    done
    printf '\n%s\n' "$line"
    "$@"
}

rm -rf runs/demo
mkdir -p runs
show elmokit embed examples/data/sentences.txt --output runs/demo
show python examples/vectors.py runs/demo

# "play" is a verb in the first sentences and a noun in the others.
show elmokit compare play \
    "They play chess on Sunday evenings" "The boys play in the street after school" \
    --other "The play has five acts" "His last play was never put on the stage"
# Without a context a word has one vector; the two meanings of "bank", both nouns, are harder for a small model.
show elmokit compare bank --layers top \
    "The bank lent him money to buy a house" "My salary is paid into the bank" \
    --other "They walked along the bank of the river" "Tall grass grew on the bank of the canal"
