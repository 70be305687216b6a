#!/usr/bin/env bash
# Make the bundled English model, from raw text to model card:
#
#     bash recipes/en_small/train.sh CORPUS RUNS
#
# CORPUS holds raw text, one paragraph per line, in train/*.txt.zst and heldout/*.txt.zst. Intermediate files go to RUNS
# (10 GB are plenty), the model to RUNS/model/en-small, its figures to RUNS/results; MODEL and RESULTS name other
# directories. With EVAL=DIRECTORY, the data sets of benchmarks/quality/intrinsic.py, the card also says how well the
# vectors tell senses and sentiment apart; this needs scikit-learn. Every step resumes: after an interruption, give the
# same command again. Models that are finished are measured once more.
#
# Environment variables replace the settings below; in this way tests/repository/test_recipes.py makes a tiny model. To
# continue the training of a model that this script made, also on another machine, set INITIAL_MODEL to its directory,
# WORDS_BEFORE to the number of words that it has read, and SEED to another seed, and give other RUNS. The bundled model
# was made in three such runs: the first with the settings below, the second from its model, with WORDS_BEFORE=34816004
# SEED=1 WORDS=4900000 COOL_DOWN=14700000, the third from the second's, with WORDS_BEFORE=54534585 SEED=3 WORDS=24536000
# COOL_DOWN=19000000.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=$1 runs=$2

shards=${SHARDS:-40}
config=${CONFIG:-$here/config.json}
vocab_size=${VOCAB_SIZE:-50000}
words=${WORDS:-27000000}       # read at a constant learning rate
cool_down=${COOL_DOWN:-8000000} # read while it falls to zero
batch_size=${BATCH_SIZE:-128} unroll_steps=${UNROLL_STEPS:-40} num_samples=${NUM_SAMPLES:-4096}
device=${DEVICE:-cpu}
initial_model=${INITIAL_MODEL:-} words_before=${WORDS_BEFORE:-0} # words that the initial model had read
seed=${SEED:-0} # determines the order of the text, among other things
learning_rate=${LEARNING_RATE:-0.004} dtype=${DTYPE:-auto} threads=${THREADS:-2}
heldout_words=${HELDOUT_WORDS:-100000} # of each domain, since the exact softmax is slow
model=${MODEL:-$runs/model/en-small} results=${RESULTS:-$runs/results}
python=${PYTHON:-python}
elmokit=("$python" -m elmokit)

# un_general_debate is kept for domain adaptation: it is evaluated, never trained on.
sources=()
for file in "$corpus"/train/*.txt.zst; do
    [[ ${file##*/} == *un_general_debate* ]] || sources+=("$file")
done
"${elmokit[@]}" prepare "${sources[@]}" --exclude "$corpus"/heldout/*.txt.zst --output "$runs/corpus" \
    --num-shards "$shards"
mkdir -p "$runs/heldout"
for file in "$corpus"/heldout/*.txt.zst; do
    name=$(basename "$file" .txt.zst)
    "${elmokit[@]}" prepare "$file" --output "$runs/heldout-$name" --num-shards 1 --drop-duplicates none --no-drop-paragraphs
    "$python" "$here/first_words.py" "$runs/heldout-$name/shard-00000.txt.zst" "$heldout_words" "$runs/heldout/$name.txt"
done

pretrain=("${elmokit[@]}" pretrain --corpus "$runs/corpus" --output "$runs/en-small" --heldout "$runs"/heldout/*.txt
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

cooled=$(ls -dt "$runs"/en-small/cool-down-*/ | head -n 1)
bundle=("$python" "$here/bundle.py" "$cooled" --output "$model" --words-before "$words_before")
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
