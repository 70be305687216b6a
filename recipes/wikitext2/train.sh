#!/usr/bin/env bash
# Pretrain a biLM on the training part of WikiText-2 alone, and measure its perplexity on the test part:
#
#     bash recipes/wikitext2/train.sh WIKITEXT RUNS
#
# WIKITEXT holds wiki.{train,valid,test}.tokens. The perplexity of the forward direction (exact softmax over the 33,278
# words of the vocabulary, state carried) is the measure that was published for LSTM language models (Merity et al.
# 2017; Grave et al. 2017), and is written to RUNS/results. After an interruption, give the same command again. CONFIG,
# RESULTS, EPOCHS, THREADS, DTYPE and PYTHON in the environment replace what is set below.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wikitext=$1 runs=$2
config=${CONFIG:-$here/config.json} results=${RESULTS:-$runs/results}
epochs=${EPOCHS:-10} threads=${THREADS:-2} dtype=${DTYPE:-auto}
python=${PYTHON:-python}

mkdir -p "$runs" "$results"
for part in train valid test; do
    "$python" "$here/articles.py" "$wikitext/wiki.$part.tokens" "$runs/$part.txt"
done
"$python" -m elmokit pretrain --corpus "$runs/train.txt" --heldout "$runs/valid.txt" --no-tokenize --output "$runs/model" \
    --config "$config" --vocab-size 40000 --min-count 1 --recipe muon --schedule cosine --learning-rate 0.004 \
    --epochs "$epochs" --batch-size 128 --unroll-steps 40 --num-samples 4096 --dropout 0.3 --fresh-starts 0 --dtype "$dtype" \
    --threads "$threads" --seed 0 --evaluate-every 800 --evaluate-words 30000 --checkpoint-every 200
"$python" "$here/../../benchmarks/quality/wikitext2.py" --run "$runs/model" --test "$runs/test.txt" \
    --output "$results/wikitext2.json"
