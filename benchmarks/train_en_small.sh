#!/usr/bin/env bash
# How the bundled English model was made: bash benchmarks/train_en_small.sh CORPUS RUNS
# CORPUS holds train/*.txt.zst and heldout/*.txt.zst, raw paragraphs; RUNS takes what is made. Every step resumes.
set -euo pipefail
corpus=$1 runs=$2
cd "$(dirname "$0")/.."

# un_general_debate is kept for domain adaptation: it is evaluated, never trained on.
sources=$(ls "$corpus"/train/*.txt.zst | grep -v un_general_debate)
elmokit prepare $sources --output "$runs/corpus" --num-shards 40
for file in "$corpus"/heldout/*.txt.zst; do
    name=$(basename "$file" .txt.zst)
    elmokit prepare "$file" --output "$runs/heldout-$name" --num-shards 1
    mkdir -p "$runs/heldout" "$runs/heldout-100k"
    zstd -dcf "$runs/heldout-$name"/shard-00000.txt.zst >"$runs/heldout/$name.txt"
    # the exact softmax is what costs: the first 100,000 words of each domain tell enough
    awk '{ words += NF; print } words >= 100000 { exit }' "$runs/heldout/$name.txt" >"$runs/heldout-100k/$name.txt"
done

elmokit pretrain --corpus "$runs/corpus" --output "$runs/en-small" \
    --heldout "$runs"/heldout-100k/{misc,openstax,simplewiki}.txt \
    --preset small --vocab-size 50000 --max-words 20500000 --batch-size 128 --num-samples 8192 \
    --dropout 0 --fresh-starts 0 --learning-rate 0.002 --dtype bfloat16 --threads 2 --evaluate-every 2000
python benchmarks/bundle_model.py "$runs/en-small" en-small
python benchmarks/heldout_perplexity.py --files "$runs"/heldout-100k/*.txt
python benchmarks/bundle_model.py "$runs/en-small" en-small # with the perplexities on its card
