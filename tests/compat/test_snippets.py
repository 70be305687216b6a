"""Programs for the original libraries run after changing only their import lines, or after
`install()` as they are.

Each program imports an original library; the fixture `run` replaces only that line. The libraries'
caches contain tiny random models under the URLs that the programs use. Programs for TensorFlow run
eagerly, without placeholders and sessions.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from efml_files import write_efml

from elmokit.compat import install
from elmokit.compat.allennlp import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE

HUB_URLS = [f"https://tfhub.dev/google/elmo/{version}" for version in (1, 2, 3)]
NEW_IMPORTS = {
    r"from allennlp\.[a-z_.]+ import": "from elmokit.compat.allennlp import",
    r"from bio_embeddings\.embed import": "from elmokit.compat.seqvec import",
    r"from bilm import": "from elmokit.compat.bilm_tf import",
    r"from bilm\.": "from elmokit.compat.bilm_tf.",
    r"import tensorflow_hub as hub": "from elmokit.compat import tf_hub as hub",
    r"from elmoformanylangs import": "from elmokit.compat.elmoformanylangs import",
    r"from simple_elmo import": "from elmokit.compat.simple_elmo import",
}
OLD_LIBRARIES = (
    "allennlp",
    "bilm",
    "bio_embeddings",
    "elmoformanylangs",
    "simple_elmo",
    "tensorflow_hub",
)


@pytest.fixture(autouse=True)
def _old_caches(
    old_model: Path, language_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The download caches of the original libraries, and models in the working directory."""
    allennlp = tmp_path / "allennlp"
    hub = tmp_path / "hub"
    (allennlp / "cache").mkdir(parents=True)
    for url, name in ((DEFAULT_OPTIONS_FILE, "options.json"), (DEFAULT_WEIGHT_FILE, "model.hdf5")):
        kept_as = (
            hashlib.sha256(url.encode()).hexdigest() + "." + hashlib.sha256(b"etag").hexdigest()
        )
        shutil.copy(old_model / name, allennlp / "cache" / kept_as)
        (allennlp / "cache" / f"{kept_as}.json").write_text("{}")
    for url in HUB_URLS:
        shutil.copytree(language_model, hub / hashlib.sha1(url.encode()).hexdigest())
    work = tmp_path / "work"
    shutil.copytree(old_model, work / "model")
    shutil.copytree(language_model, work / "language_model")
    write_efml(work / "elmo_chinese")
    monkeypatch.setenv("ALLENNLP_CACHE_ROOT", str(allennlp))
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(hub))
    monkeypatch.chdir(work)


Run = Callable[[str], dict[str, Any]]


@pytest.fixture(params=["imports changed", "install()"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a program, with its imports replaced or with `install()`, and returns its variables."""
    before = list(sys.meta_path)
    with_install = request.param == "install()"
    if with_install:
        install(tensorflow_hub=True)

    def run_program(program: str) -> dict[str, Any]:
        for old, new in NEW_IMPORTS.items():
            program = (
                program if with_install else re.sub(rf"^{old}", new, program, flags=re.MULTILINE)
            )
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(program, "snippet", "exec"), names)
        return names

    yield run_program
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.split(".")[0] in OLD_LIBRARIES]:
        del sys.modules[name]


# --- AllenNLP -------------------------------------------------------------------------------------


def test_allennlp_elmo_with_two_representations(run: Run) -> None:
    result = run("""
from allennlp.modules.elmo import Elmo, batch_to_ids

options_file = "model/options.json"
weight_file = "model/model.hdf5"

elmo = Elmo(options_file, weight_file, 2, dropout=0)
sentences = [['First', 'sentence', '.'], ['Another', '.']]
character_ids = batch_to_ids(sentences)
embeddings = elmo(character_ids)
first, second = embeddings['elmo_representations']
mask = embeddings['mask']
""")
    assert result["character_ids"].shape == (2, 3, 50)
    assert result["first"].shape == result["second"].shape == (2, 3, 32)
    assert result["mask"].tolist() == [[True, True, True], [True, True, False]]


def test_allennlp_elmo_in_a_model_that_is_trained(run: Run) -> None:
    result = run("""
import torch
from allennlp.modules.elmo import Elmo, batch_to_ids

class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.elmo = Elmo("model/options.json", "model/model.hdf5", num_output_representations=1, dropout=0.5,
                         requires_grad=False, do_layer_norm=False)
        self.linear = torch.nn.Linear(self.elmo.get_output_dim(), 3)

    def forward(self, character_ids):
        out = self.elmo(character_ids)
        return self.linear(out["elmo_representations"][0]), out["mask"]

torch.manual_seed(0)
model = Tagger()
before = model.elmo.scalar_mix_0.gamma.item()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
for _ in range(3):
    logits, mask = model(batch_to_ids([["the", "cat"], ["dogs", "are", "in"]]))
    loss = torch.nn.functional.cross_entropy(logits[mask.bool()], torch.tensor([0, 1, 0, 2, 1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
after = model.elmo.scalar_mix_0.gamma.item()
""")
    assert result["before"] == 1
    assert result["after"] != 1


def test_allennlp_embedder_with_the_default_model(run: Run) -> None:
    with pytest.warns(UserWarning, match="each of its characters is read as a token"):
        result = run("""
from allennlp.commands.elmo import ElmoEmbedder

ee = ElmoEmbedder()
wrong = ee.embed_sentence("Bitcoin alone has a sixty percent share of global search .")
embeddings = ee.embed_sentence("Bitcoin alone has a sixty percent share of global search .".split())
""")
    assert result["embeddings"].shape == (3, 11, 32)
    assert result["wrong"].shape == (3, 58, 32)


def test_allennlp_embedder_and_cosine_distance(run: Run) -> None:
    result = run("""
from allennlp.commands.elmo import ElmoEmbedder
import numpy as np

elmo = ElmoEmbedder("model/options.json", "model/model.hdf5", cuda_device=-1)
tokens = ["I", "ate", "an", "apple", "for", "breakfast"]
tokens2 = ["I", "ate", "a", "carrot", "for", "breakfast"]
vectors, vectors2 = elmo.embed_batch([tokens, tokens2])
a, b = vectors[2][3], vectors2[2][3]
cosine = 1 - np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)
assert len(vectors) == 3 and len(vectors[0]) == len(tokens)

lengths = []
for layers in elmo.embed_sentences(iter([tokens, [], tokens2[:2]]), batch_size=2):
    lengths.append(layers.shape[1])
activations, mask = elmo.batch_to_embeddings([tokens, tokens2[:2]])
""")
    assert 0 < result["cosine"] < 2
    assert result["lengths"] == [6, 0, 2]
    assert result["activations"].shape == (2, 3, 6, 32)
    assert result["mask"].sum().item() == 8


def test_allennlp_embedder_writes_a_file(run: Run) -> None:
    result = run("""
import h5py, json
from allennlp.commands.elmo import ElmoEmbedder

with open("sentences.txt", "w") as f:
    f.write("The cryptocurrency space is now figuring out\\n")
    f.write("Bitcoin alone has a sixty percent share .\\n")
elmo = ElmoEmbedder("model/options.json", "model/model.hdf5")
with open("sentences.txt") as f:
    elmo.embed_file(f, "elmo_layers.hdf5", "all", 64)

h5py_file = h5py.File("elmo_layers.hdf5", 'r')
embedding = h5py_file.get("0")
sentence_to_index = json.loads(h5py_file.get("sentence_to_index")[0])
index = sentence_to_index["Bitcoin alone has a sixty percent share ."]
""")
    assert result["embedding"].shape == (3, 7, 32)
    assert result["index"] == "1"


def test_allennlp_token_embedder(run: Run) -> None:
    result = run("""
from allennlp.modules.elmo import batch_to_ids
from allennlp.modules.token_embedders import ElmoTokenEmbedder

embedder = ElmoTokenEmbedder("model/options.json", "model/model.hdf5", do_layer_norm=True, dropout=0.0,
                             projection_dim=7)
embedded = embedder(batch_to_ids([["the", "cat", "is"], ["dogs"]]))
""")
    assert result["embedded"].shape == (2, 3, 7)
    assert result["embedder"].get_output_dim() == 7


def test_allennlp_proteins_as_seqvec_embeds_them(run: Run) -> None:
    result = run("""
from allennlp.commands.elmo import ElmoEmbedder
from pathlib import Path
import torch

model_dir = Path('model')
weights = model_dir / 'model.hdf5'
options = model_dir / 'options.json'
embedder = ElmoEmbedder(options, weights, cuda_device=-1) # cuda_device=-1 for CPU

seq = 'SEQWENCE' # your amino acid sequence
embedding = embedder.embed_sentence(list(seq)) # List-of-Lists with shape [3,L,1024]
residue_embd = torch.tensor(embedding).sum(dim=0) # Tensor with shape [L,1024]
protein_embd = torch.tensor(embedding).sum(dim=0).mean(dim=0) # Vector with shape [1024]
""")
    assert result["residue_embd"].shape == (8, 32)
    assert abs(result["protein_embd"].numpy() - result["embedding"].sum(0).mean(0)).max() < 1e-5


def test_allennlp_layers_of_the_bilm_without_boundaries(run: Run) -> None:
    result = run("""
import torch
from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
from allennlp.nn.util import remove_sentence_boundaries

bilm = _ElmoBiLm("model/options.json", "model/model.hdf5")
output = bilm(batch_to_ids([["the", "cat", "is"], ["dogs"]]))
layers = []
for activation in output["activations"]:
    without_bos_eos, mask = remove_sentence_boundaries(activation, output["mask"])
    layers.append(without_bos_eos)
stacked = torch.stack(layers, dim=1)
""")
    assert result["stacked"].shape == (2, 3, 3, 32)
    assert result["mask"].tolist() == [
        [True] * 3,
        [True, False, False],
    ]


def test_allennlp_weights_of_a_trained_model_are_saved_and_loaded(run: Run) -> None:
    result = run("""
import torch
from allennlp.modules.elmo import Elmo, batch_to_ids

def make():
    torch.manual_seed(0)
    return torch.nn.ModuleDict({
        "elmo": Elmo("model/options.json", "model/model.hdf5", 1, requires_grad=True, dropout=0.0),
        "out": torch.nn.Linear(32, 2),
    })

model, ids = make(), batch_to_ids([["the", "cat"], ["dogs"]])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model["out"](model["elmo"](ids)["elmo_representations"][0]).pow(2).sum()
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
optimizer.step()
torch.save(model.state_dict(), "model.th")
restored = make()
missing = restored.load_state_dict(torch.load("model.th"))
def vectors(each):
    each["elmo"]._elmo_lstm._elmo_lstm.reset_states()
    return each["elmo"](ids)["elmo_representations"][0]
trained, loaded, fresh = vectors(model), vectors(restored), vectors(make())
""")
    assert (result["trained"] == result["loaded"]).all()
    assert (result["trained"] != result["fresh"]).any()


def test_allennlp_scalar_mix_of_layers_of_ones_own(run: Run) -> None:
    result = run("""
import torch
from allennlp.modules.scalar_mix import ScalarMix

mix = ScalarMix(mixture_size=4, do_layer_norm=True, initial_scalar_parameters=[0.0, 0.0, 0.0, 1.0], trainable=True)
layers = [torch.randn(2, 5, 8) for _ in range(4)]
mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
mixed = mix(layers, mask)
weights = [round(parameter.item(), 3) for parameter in mix.scalar_parameters]
trainable = [parameter for parameter in mix.parameters() if parameter.requires_grad]
""")
    assert result["mixed"].shape == (2, 5, 8)
    assert result["weights"] == [0, 0, 0, 1]
    assert len(result["trainable"]) == 5


# --- bilm-tf --------------------------------------------------------------------------------------

DATA = """
raw_context = [
    'Pretrained biLMs compute representations useful for NLP tasks .',
    'They give state of the art performance for many tasks .'
]
tokenized_context = [sentence.split() for sentence in raw_context]
tokenized_question = [['What', 'are', 'biLMs', 'useful', 'for', '?']]
options_file = 'model/options.json'
weight_file = 'model/model.hdf5'
"""


def test_bilm_tf_with_characters(run: Run) -> None:
    result = run(f"""
from bilm import Batcher, BidirectionalLanguageModel, weight_layers
{DATA}
batcher = Batcher('model/vocab.txt', 50)
bilm = BidirectionalLanguageModel(options_file, weight_file)

context_embeddings_op = bilm(batcher.batch_sentences(tokenized_context))
question_embeddings_op = bilm(batcher.batch_sentences(tokenized_question))

elmo_context_input = weight_layers('input', context_embeddings_op, l2_coef=0.0)
elmo_question_input = weight_layers('input', question_embeddings_op, l2_coef=0.0)
elmo_context_output = weight_layers('output', context_embeddings_op, l2_coef=0.0)
elmo_context_input_, elmo_question_input_ = [elmo_context_input['weighted_op'], elmo_question_input['weighted_op']]
""")
    assert result["elmo_context_input_"].shape == (2, 11, 32)
    assert result["elmo_question_input_"].shape == (1, 6, 32)
    assert len(list(result["bilm"].mixes.parameters())) == 4


def test_bilm_tf_with_precomputed_token_embeddings(run: Run) -> None:
    result = run(f"""
from bilm import TokenBatcher, BidirectionalLanguageModel, weight_layers, dump_token_embeddings
{DATA}
all_tokens = set(['<S>', '</S>'] + tokenized_question[0])
for context_sentence in tokenized_context:
    for token in context_sentence:
        all_tokens.add(token)
with open('vocab_small.txt', 'w') as fout:
    fout.write('\\n'.join(all_tokens))

dump_token_embeddings('vocab_small.txt', options_file, weight_file, 'elmo_token_embeddings.hdf5')

batcher = TokenBatcher('vocab_small.txt')
bilm = BidirectionalLanguageModel(
    options_file,
    weight_file,
    use_character_inputs=False,
    embedding_weight_file='elmo_token_embeddings.hdf5'
)
context_ids = batcher.batch_sentences(tokenized_context)
context_embeddings_op = bilm(context_ids)
elmo_context_input = weight_layers('input', context_embeddings_op, l2_coef=0.0)

from bilm import Batcher
by_characters = BidirectionalLanguageModel(options_file, weight_file)(
    Batcher('vocab_small.txt', 50).batch_sentences(tokenized_context))
""")
    assert result["context_ids"].shape == (2, 13)
    by_words = result["context_embeddings_op"]
    by_characters = result["by_characters"]
    assert (by_words["lm_embeddings"] - by_characters["lm_embeddings"]).abs().max() < 1e-5
    assert (by_words["mask"] == by_characters["mask"]).all()


# --- bio_embeddings -------------------------------------------------------------------------------


def test_bio_embeddings_embeds_proteins(run: Run) -> None:
    result = run("""
import numpy as np
from bio_embeddings.embed import SeqVecEmbedder

embedder = SeqVecEmbedder(options_file="model/options.json", weights_file="model/model.hdf5")
sequences = ["MKV", "SEQWENCE", "A"]
embeddings = list(embedder.embed_many(sequences, batch_size=5000))
per_protein = np.stack([embedder.reduce_per_protein(each) for each in embeddings])
one = embedder.embed("SEQWENCE")
""")
    assert [array.shape for array in result["embeddings"]] == [(3, 3, 32), (3, 8, 32), (3, 1, 32)]
    assert abs(result["one"] - result["embeddings"][1]).max() < 1e-5
    assert result["per_protein"].shape == (3, 32)


# --- TensorFlow Hub -------------------------------------------------------------------------------


def test_hub_module_with_strings(run: Run) -> None:
    result = run("""
import tensorflow_hub as hub

elmo = hub.Module("https://tfhub.dev/google/elmo/2", trainable=True)
embeddings = elmo(
    ["the cat is on the mat", "dogs are in the fog"],
    signature="default",
    as_dict=True)["elmo"]
""")
    assert result["embeddings"].shape == (2, 6, 32)
    assert result["embeddings"].requires_grad
    assert (
        sum(
            parameter.numel()
            for parameter in result["elmo"].parameters()
            if parameter.requires_grad
        )
        == 4
    )


def test_hub_module_with_tokens(run: Run) -> None:
    result = run("""
import tensorflow_hub as hub

elmo = hub.Module("https://tfhub.dev/google/elmo/3", trainable=False)
tokens_input = [["the", "cat", "is", "on", "the", "mat"],
                ["dogs", "are", "in", "the", "fog", ""]]
tokens_length = [6, 5]
embeddings = elmo(
    inputs={
        "tokens": tokens_input,
        "sequence_len": tokens_length
    },
    signature="tokens",
    as_dict=True)
strings = elmo(["the cat is on the mat", "dogs are in the fog"], signature="default", as_dict=True)
""")
    embeddings = result["embeddings"]
    assert embeddings["word_emb"].shape == (2, 6, 16)
    assert all(
        embeddings[key].shape == (2, 6, 32) for key in ("lstm_outputs1", "lstm_outputs2", "elmo")
    )
    assert all((embeddings[key] == result["strings"][key]).all() for key in embeddings)


def test_hub_load_and_its_signatures(run: Run) -> None:
    result = run("""
import tensorflow_hub as hub

elmo = hub.load("https://tfhub.dev/google/elmo/3")
embeddings = elmo.signatures["default"](["the cat is on the mat", "dogs are in the fog"])
sentence_vectors = embeddings["default"].numpy()
by_tokens = elmo.signatures["tokens"](tokens=[["the", "cat"]], sequence_len=[2])["elmo"].numpy()
""")
    assert result["sentence_vectors"].shape == (2, 32)
    assert result["by_tokens"].shape == (1, 2, 32)


def test_hub_keras_layer_under_a_classifier(run: Run) -> None:
    result = run("""
import numpy as np
import torch
import tensorflow_hub as hub

embed = hub.KerasLayer("https://tfhub.dev/google/elmo/3", input_shape=[], dtype="string", trainable=False)
texts = np.array(["the cat is on the mat", "dogs are in the fog", "the cat is in the fog", "dogs are on the mat"])
labels = np.array([0, 1, 0, 1])
features = torch.tensor(np.array(embed(texts)))
classifier = torch.nn.Sequential(torch.nn.Linear(features.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
torch.manual_seed(0)
optimizer = torch.optim.Adam(classifier.parameters(), lr=0.05)
for epoch in range(50):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(classifier(features), torch.tensor(labels)).backward()
    optimizer.step()
predicted = classifier(features).argmax(dim=1).numpy()
""")
    assert (result["predicted"] == result["labels"]).all()
    assert result["features"].shape == (4, 32)


def test_hub_trainable_module_is_averaged_as_an_array(run: Run) -> None:
    with pytest.warns(UserWarning, match="carry no gradients"):
        result = run("""
import numpy as np
import tensorflow_hub as hub

elmo = hub.Module("https://tfhub.dev/google/elmo/2", trainable=True)
def elmo_vectors(x):
    embeddings = elmo(list(x), signature="default", as_dict=True)["elmo"]
    return np.mean(embeddings.numpy(), axis=1)
vectors = np.concatenate([elmo_vectors(batch) for batch in (["the cat is", "dogs are in"], ["the state of"])])
""")
    assert result["vectors"].shape == (3, 32)


# --- ELMoForManyLangs -----------------------------------------------------------------------------


def test_elmoformanylangs_sentences_to_vectors(run: Run) -> None:
    result = run("""
from elmoformanylangs import Embedder

e = Embedder('elmo_chinese')

sents = [['今', '天', '天气', '真', '好', '阿'],
['潮水', '退', '了', '就', '知道', '谁', '没', '穿', '裤子']]
# the list of lists which store the sentences
# after segment if necessary.

output = e.sents2elmo(sents)
# will return a list of numpy arrays
# each with the shape=(seq_len, embedding_size)
""")
    assert [array.shape for array in result["output"]] == [(6, 32), (9, 32)]


def test_elmoformanylangs_layers_in_a_padded_batch(run: Run) -> None:
    result = run("""
import numpy as np
import torch
from elmoformanylangs import Embedder

e = Embedder("elmo_chinese", batch_size=16)
sents = [["the", "cat"], ["cat", "the", "the"]]

outs = e.sents2elmo(sents, output_layer=-2)
max_len = max(o.shape[1] for o in outs)
batch = torch.zeros(len(sents), max_len, outs[0].shape[2], dtype=torch.float)
for i, o in enumerate(outs):
    batch[i, :o.shape[1], :] = torch.from_numpy(np.average(o, axis=0))
top = e.sents2elmo(sents, output_layer=2)
pooled = [np.mean(embeds, axis=0) for embeds in top]
""")
    assert [array.shape for array in result["outs"]] == [(3, 2, 32), (3, 3, 32)]
    assert result["batch"].shape == (2, 3, 32)
    assert not result["batch"][0, 2].any()
    assert [vector.shape for vector in result["pooled"]] == [(32,), (32,)]


# --- simple_elmo ----------------------------------------------------------------------------------


def test_simple_elmo_vectors(run: Run) -> None:
    result = run("""
import numpy as np
from simple_elmo import ElmoModel

raw_sentences = ["the cat is on the mat", "They give state of the art", "dogs are in the fog"]
sentences = [s.split()[:100] for s in raw_sentences]

model = ElmoModel()
model.load("model")
elmo_vectors = model.get_elmo_vectors(sentences)
all_layers = model.get_elmo_vectors(sentences, warmup=False, layers="all")

cropped_vectors = []
for vect, sent in zip(elmo_vectors, sentences):
    cropped_vectors.append(vect[:len(sent), :])
query_vec = cropped_vectors[-2][1, :]
sims = {word: np.dot(query_vec, cropped_vectors[0][nr, :]) for nr, word in enumerate(sentences[0])}
nearest = sorted(sims, key=sims.get, reverse=True)
""")
    vectors = result["elmo_vectors"]
    assert vectors.shape == (3, 6, result["model"].vector_size)
    assert vectors.dtype == float
    assert result["all_layers"].shape == (3, 3, 6, 32)
    assert not vectors[2, 5].any()
    assert vectors[2, 4].any()
    assert set(result["nearest"]) == {"the", "cat", "is", "on", "mat"}


def test_simple_elmo_averages(run: Run) -> None:
    with pytest.warns(UserWarning, match="averages exclude padding"):
        result = run("""
import numpy as np
from simple_elmo import ElmoModel

model = ElmoModel()
model.load("model", max_batch_size=2)
pairs = [(["the", "cat"], ["dogs", "are", "in", "the", "fog"])]
vectors0 = model.get_elmo_vector_average([p[0] for p in pairs])
vectors1 = model.get_elmo_vector_average([p[1] for p in pairs])
sims = [np.dot(v0, v1) for v0, v1 in zip(vectors0, vectors1)]
""")
    assert result["vectors0"].shape == (1, 32)
    assert abs((result["vectors0"] ** 2).sum() - 1) < 1e-9
    assert abs(result["sims"][0]) <= 1


def test_simple_elmo_substitutes(run: Run) -> None:
    with pytest.warns(UserWarning, match="given the whole context"):
        result = run("""
from simple_elmo import ElmoModel

model = ElmoModel()
model.load("language_model", full=True)
lex_substitutes = model.get_elmo_substitutes(["the cat is on the mat", "dogs are here"], topn=2)
target_substitutes = {"cat": []}
for sent in lex_substitutes:
    for word in sent:
        if word["word"] in target_substitutes:
            target_substitutes[word["word"]].append({el: word[el] for el in word if el != "word"})
""")
    sentences = result["lex_substitutes"]
    assert [[word["word"] for word in sentence] for sentence in sentences] == [
        ["the", "cat", "is", "on", "the", "mat"],
        ["dogs", "are", "<UNK>"],
    ]
    (substitutes,) = result["target_substitutes"]["cat"]
    assert all(
        len(substitutes[direction]["candidate_words"]) == 2 for direction in ("forward", "backward")
    )
