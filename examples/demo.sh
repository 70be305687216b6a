#!/usr/bin/env bash
# Real vectors of real sentences from the bundled English model, without a network: make demo
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

show elmokit info
show elmokit compare apple \
    "I like to eat apple" "She cut an apple into slices" \
    "I like apple products" "The new apple computer is faster than the old one"

rm -rf runs/demo
mkdir -p runs
show elmokit embed examples/sentences.txt --output runs/demo
show python examples/vectors.py runs/demo
