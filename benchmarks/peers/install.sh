#!/usr/bin/env bash
# The old systems, each in an environment of its own:
#     bash benchmarks/peers/install.sh DIRECTORY [allennlp] [tf] [efml]
# Makes DIRECTORY/{allennlp,tf,efml}; tf holds both bilm-tf and simple_elmo. PYTHON names the interpreter (3.11).
# All come from PyPI, with the torch that elmokit is measured with.
set -euo pipefail
target=$1
shift
peers=${*:-allennlp tf efml}
for peer in $peers; do
    [[ $peer =~ ^(allennlp|tf|efml)$ ]] || { echo "no such peer: $peer" >&2 && exit 1; }
done
torch=torch==2.13.0
mkdir -p "$target"
target=$(cd "$target" && pwd)

pip_install() { "$environment/bin/python" -m pip install --quiet --constraint "$target/constraints.txt" "$@"; }

make_environment() {
    "${PYTHON:-python3}" -m venv "$target/$1"
    environment=$target/$1
    pip_install "setuptools<81" wheel # allennlp and fairscale still ask for pkg_resources
}

site_packages() { "$target/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

allennlp() {
    make_environment allennlp
    pip_install $torch numpy
    pip_install h5py cached-path lmdb dill base58 nltk more-itertools filelock requests tqdm termcolor tensorboardX \
        scikit-learn scipy sentencepiece transformers==4.30.2 spacy flaky overrides==3.1.0
    pip_install --no-deps allennlp==2.10.1 wandb
    pip_install --no-deps --no-build-isolation fairscale==0.4.6
    touch "$(site_packages allennlp)/torchvision.py" # imported, never used by ELMo
}

tf() {
    make_environment tf
    pip_install tensorflow-cpu==2.21.0 tf_keras==2.21.0 simple_elmo==0.9.2 h5py
    pip_install --no-deps bilm
    local bilm
    bilm=$(site_packages tf)/bilm
    # It was written for TensorFlow 1 and Python 3.6, where a generator might end with StopIteration.
    sed -i.orig 's/^import tensorflow as tf$/import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()/' "$bilm"/*.py
    sed -i.orig 's/^\( *\)raise StopIteration.*$/\1return/' "$bilm/data.py"
    rm "$bilm"/*.orig
}

efml() {
    make_environment efml
    pip_install $torch "numpy<2"
    pip_install elmoformanylangs==0.0.4.post2 overrides==3.1.0 h5py
}

printf '%s\n' $torch >"$target/constraints.txt"
for peer in $peers; do
    $peer
done
# TensorFlow's own Keras 3 lacks the layers that simple_elmo calls.
export TF_USE_LEGACY_KERAS=1 TF_CPP_MIN_LOG_LEVEL=2
for peer in $peers; do
    case $peer in
    allennlp) "$target/allennlp/bin/python" -c 'from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids' ;;
    tf) "$target/tf/bin/python" -c 'import bilm.training, simple_elmo' ;;
    efml) "$target/efml/bin/python" -c 'from elmoformanylangs import Embedder' ;;
    esac
    echo "$peer imports"
done
