#!/usr/bin/env bash
# Make a bundled model, from raw text to model card:
#
#     bash recipes/small/train.sh en CORPUS RUNS     # or zh: the settings of en.env, zh.env
#
# CORPUS holds raw text, one paragraph per line, in train/*.txt.zst and heldout/*.txt.zst. Intermediate files go to RUNS
# (10 GB are plenty), the model to RUNS/model/NAME, its figures to RUNS/results; MODEL and RESULTS name other
# directories. With EVAL=DIRECTORY, the data sets of benchmarks/quality/intrinsic.py, the card of the English model also
# says how well the vectors tell senses and sentiment apart; this needs scikit-learn. Every step resumes: after an
# interruption, give the same command again. Models that are finished are measured once more.
#
# Environment variables replace the settings; in this way tests/repository/test_recipes.py makes a tiny model. To
# continue the training of a model that this script made, also on another machine, set INITIAL_MODEL to its directory,
# WORDS_BEFORE to the number of words that it has read, and SEED to another seed, and give other RUNS.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=en.env
source "$here/$1.env"
corpus=$2 runs=$3

shards=${SHARDS:-40}
config=${CONFIG:-$here/config.json}
vocab_size=${VOCAB_SIZE:-$vocab_size}
words=${WORDS:-$words}
cool_down=${COOL_DOWN:-$cool_down}
batch_size=${BATCH_SIZE:-128} unroll_steps=${UNROLL_STEPS:-40} num_samples=${NUM_SAMPLES:-4096}
device=${DEVICE:-cpu}
initial_model=${INITIAL_MODEL:-} words_before=${WORDS_BEFORE:-0} # words that the initial model had read
seed=${SEED:-0} # determines the order of the text, among other things
learning_rate=${LEARNING_RATE:-0.004} dtype=${DTYPE:-auto} threads=${THREADS:-2}
heldout_words=${HELDOUT_WORDS:-100000} # of each domain, since the exact softmax is slow
model=${MODEL:-$runs/model/$name} results=${RESULTS:-$runs/results}
python=${PYTHON:-python}
elmokit=("$python" -m elmokit)

sources=()
for file in "$corpus"/train/*.txt.zst; do
    [[ $excluded && ${file##*/} == *$excluded* ]] || sources+=("$file")
done
split=(--language "$language" --tokenizer "$tokenizer")
"${elmokit[@]}" prepare "${sources[@]}" --exclude "$corpus"/heldout/*.txt.zst --output "$runs/corpus" \
    --num-shards "$shards" "${split[@]}"
mkdir -p "$runs/heldout"
for file in "$corpus"/heldout/*.txt.zst; do
    domain=$(basename "$file" .txt.zst)
    "${elmokit[@]}" prepare "$file" --output "$runs/heldout-$domain" --num-shards 1 --drop-duplicates none \
        --no-drop-paragraphs "${split[@]}"
    "$python" "$here/first_words.py" "$runs/heldout-$domain/shard-00000.txt.zst" "$heldout_words" "$runs/heldout/$domain.txt"
done

pretrain=("${elmokit[@]}" pretrain --corpus "$runs/corpus" --output "$runs/$name" --heldout "$runs"/heldout/*.txt
    --no-tokenize --recipe muon --schedule constant --learning-rate "$learning_rate"
    --batch-size "$batch_size" --unroll-steps "$unroll_steps" --num-samples "$num_samples" --dropout 0 --fresh-starts 0.1
    --dtype "$dtype" --device "$device" --threads "$threads" --seed "$seed" --evaluate-every 1000 --evaluate-words 70000)
if [[ $initial_model ]]; then
    if [[ -e $model && $(realpath "$initial_model") == $(realpath "$model") ]]; then
        echo "the initial model would be replaced by its successor: give another MODEL or other RUNS" >&2
        exit 1
    fi
    pretrain+=(--initial-model "$initial_model")
else
    pretrain+=(--config "$config" --vocab-size "$vocab_size")
fi
"${pretrain[@]}" --max-words "$words"
"${pretrain[@]}" --cool-down "$cool_down"

cooled=$(ls -dt "$runs/$name"/cool-down-*/ | head -n 1)
bundle=("$python" "$here/bundle.py" "$cooled" --about "$here/$language.md" --language "$language" --output "$model"
    --words-before "$words_before")
"${bundle[@]}"
"$python" "$here/../../benchmarks/quality/heldout_perplexity.py" --model "$model" --files "$runs"/heldout/*.txt \
    --output "$results/heldout_perplexity.json"
bundle+=(--perplexities "$results/heldout_perplexity.json")
if [[ ${EVAL:-} ]]; then
    "$python" "$here/../../benchmarks/quality/intrinsic.py" --model "$model" --eval "$EVAL" --only uses sst2 --states zeros \
        --label "$(basename "$cooled")" --output "$results/intrinsic.json"
    bundle+=(--intrinsic "$results/intrinsic.json")
fi
"${bundle[@]}" # once more, with the figures on its card
