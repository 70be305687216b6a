"""ELMo for downstream models: boundaries, what learns and what does not, dropout, several mixes."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import tiny_bilm
from torch import Tensor

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.elmo import Elmo, batch_to_ids
from elmokit.nn.inference import prepack
from elmokit.text.characters import TruncationWarning, encode_sentences

SENTENCES = [["I", "like", "apples"], ["plays"], [], ["an", "œuvre"]]
SHAPES = [SENTENCES, [["one"]], [["a", "b"] * 4, ["c"]], [["words"] * 9] * 5]
WORD_IDS = BiLMConfig(LSTMConfig(2, 6, 4), None, num_words=9, boundary_words=(3, 7))


def ids() -> Tensor:
    return torch.from_numpy(encode_sentences(SENTENCES)).long()


def test_boundaries_stand_around_the_words_of_each_row() -> None:
    explicit = encode_sentences([["<S>", *sentence, "</S>"] for sentence in SENTENCES])
    np.testing.assert_array_equal(tiny_bilm().token_encoder.add_boundaries(ids()).numpy(), explicit)
    padded = BiLM(WORD_IDS).token_encoder.add_boundaries(
        torch.tensor([[2, 3, 5], [9, 0, 0], [0, 0, 0]])
    )
    assert padded.tolist() == [[4, 2, 3, 5, 8], [4, 9, 8, 0, 0], [4, 8, 0, 0, 0]]


@pytest.mark.parametrize(
    "config", [BiLMConfig.preset("tiny"), WORD_IDS], ids=["characters", "words"]
)
def test_representations_are_mixes_of_the_layers_between_the_boundaries(config: BiLMConfig) -> None:
    elmo = Elmo(BiLM(config), num_mixes=2).eval()
    batch = ids()
    if config is WORD_IDS:
        batch = torch.tensor([[2, 3, 5], [9, 0, 0]])
    out = elmo(batch)
    mask = elmo.bilm.token_encoder.is_word(batch)
    layers = elmo.bilm(elmo.bilm.token_encoder.add_boundaries(batch)).layers[:, :, 1:-1]
    assert torch.equal(out.mask, mask)
    for found in out.representations:
        torch.testing.assert_close(found[mask], layers.mean(dim=0)[mask])
        assert not found[~mask].any()


def test_state_is_an_argument_and_a_result() -> None:
    elmo = Elmo(tiny_bilm()).eval()
    first = elmo(ids())
    second = elmo(ids(), first.state)
    again = elmo(ids())
    assert torch.equal(
        first.representations[0], again.representations[0]
    )  # nothing hides in the module
    assert not torch.allclose(first.representations[0], second.representations[0])
    expected = (
        elmo.bilm(elmo.bilm.token_encoder.add_boundaries(ids()), state=first.state)
        .layers[:, 0, 1:4]
        .mean(dim=0)
    )
    torch.testing.assert_close(second.representations[0][0], expected)


def test_parts_of_a_frozen_bilm_may_be_unfrozen() -> None:
    elmo = Elmo(tiny_bilm())
    elmo.bilm.sequence_encoder.requires_grad_(True)
    elmo(ids()).representations[0].square().sum().backward()
    assert all(weight.grad is not None for weight in elmo.bilm.sequence_encoder.parameters())
    assert all(weight.grad is None for weight in elmo.bilm.token_encoder.parameters())


@pytest.mark.parametrize("freeze", [True, False])
def test_what_a_hook_adds_to_a_bilm_learns(freeze: bool) -> None:
    elmo = Elmo(tiny_bilm(), freeze=freeze)
    elmo.bilm.requires_grad_(False)
    adapter = torch.zeros(16, requires_grad=True)
    elmo.bilm.sequence_encoder.stacks[0].layers[0].register_forward_hook(
        lambda *args: (args[2][0] + adapter, args[2][1])
    )
    elmo(ids()).representations[0].sum().backward()
    assert adapter.grad.any()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3), (torch.float64, 1e-5)]
)
@pytest.mark.parametrize("freeze", [True, False])
def test_elmo_in_another_number_type_gives_representations_of_that_type(
    dtype: torch.dtype, tolerance: float, freeze: bool
) -> None:
    expected = Elmo(tiny_bilm(), freeze=freeze).eval()(ids()).representations[0].detach()
    elmo = Elmo(tiny_bilm(), freeze=freeze).to(dtype).eval()
    (found,) = elmo(ids()).representations
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.float(), expected, atol=tolerance * float(expected.abs().max()), rtol=0
    )
    found.sum().backward()
    assert all(weight.grad is not None for weight in elmo.parameters() if weight.requires_grad)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_a_compiled_elmo_takes_batches_of_any_shape_and_leaves_the_bilm_as_it_is() -> None:
    """Traced into the kernels, the biLM would be compiled in many pieces, and anew for each
    shape.
    """
    elmo = Elmo(tiny_bilm()).eval()
    pieces = []
    compiled = torch.compile(elmo, backend="aot_eager")
    bilm = torch.compile(elmo.bilm, backend=lambda piece, _: pieces.append(piece))
    for sentences in SHAPES:
        batch = batch_to_ids(sentences)
        torch.testing.assert_close(
            compiled(batch).representations[0], elmo(batch).representations[0]
        )
        torch.testing.assert_close(bilm(batch).layers, elmo.bilm(batch).layers)
    assert not pieces


def test_dropout_is_for_training_only_and_differs_between_mixes() -> None:
    elmo = Elmo(tiny_bilm(), num_mixes=2, dropout=0.5)
    mask = (ids() > 0).any(dim=-1)
    first, second = (mix[mask] for mix in elmo(ids()).representations)
    assert 0.3 < (first == 0).double().mean() < 0.7
    assert not torch.equal(first == 0, second == 0)
    first, second = (mix[mask] for mix in elmo.eval()(ids()).representations)
    assert (first != 0).all()
    assert torch.equal(first, second)


def test_several_mixes_learn_apart() -> None:
    """The biLM, which is frozen, does not learn."""
    torch.manual_seed(0)
    elmo = Elmo(tiny_bilm(), num_mixes=2, dropout=0.0)
    optimizer = torch.optim.SGD([p for p in elmo.parameters() if p.requires_grad], lr=0.5)
    before = {name: value.clone() for name, value in elmo.bilm.state_dict().items()}
    for _ in range(5):
        first, second = elmo(ids()).representations
        loss = (first - 1).square().mean() + (second + 1).square().mean() + elmo.penalty(0.001)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert elmo.penalty(0.1).item() == pytest.approx(
        0.1 * sum(mix.weights.square().sum().item() for mix in elmo.mixes)
    )
    assert not torch.allclose(elmo.mixes[0].gamma, elmo.mixes[1].gamma)
    assert not torch.allclose(elmo.mixes[0].weights, elmo.mixes[1].weights)
    assert all(torch.equal(value, before[name]) for name, value in elmo.bilm.state_dict().items())
    assert all(weight.grad is None for weight in elmo.bilm.parameters())


def test_ids_that_are_narrower_than_the_model_reads_give_the_same_vectors() -> None:
    """In training every filter saw windows of padding after a word."""
    elmo = Elmo(tiny_bilm()).eval()
    sentences = [["the", "characteristics", "of"], ["misunderstanding"]]
    wide, narrow = (elmo(batch_to_ids(sentences, width)).representations[0] for width in (50, 18))
    torch.testing.assert_close(narrow, wide, rtol=0, atol=0)


def test_batch_to_ids_warns_of_truncated_words_and_refuses_strings() -> None:
    with pytest.warns(TruncationWarning, match="1 word is too long and is cut after 48 bytes"):
        ids = batch_to_ids([["a" * 49, "a" * 48]])
    assert torch.equal(ids[0, 0], ids[0, 1])
    for sentences in ("a b", ["a b"]):
        with pytest.raises(ValueError, match="lists of tokens"):
            batch_to_ids(sentences)


@pytest.mark.parametrize(
    ("wrong", "error", "word"),
    [
        ([["a"]], ValueError, "batch_to_ids"),
        (ids().float(), ValueError, "integers"),
        (ids()[0], ValueError, "B, T, C"),
        (torch.cat([ids(), ids()], dim=2), ValueError, "50 characters"),
        (ids().flip(1), ValueError, "begin with its words"),
        (ids() + 1, IndexError, "characters"),
        (ids() * (ids() != 261), IndexError, "characters"),
    ],
)
def test_ids_that_are_no_words_of_the_model_are_refused(
    wrong: Any, error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        Elmo(tiny_bilm())(wrong)


def test_elmo_takes_a_bilm_and_trains_none_that_is_prepacked() -> None:
    with pytest.raises(ValueError, match="takes a biLM"):
        Elmo(Pretrained(tiny_bilm()))  # type: ignore[arg-type]
    prepacked = prepack(tiny_bilm(), torch.float32)
    expected = Elmo(tiny_bilm()).eval()(ids()).representations[0]
    torch.testing.assert_close(Elmo(prepacked).eval()(ids()).representations[0], expected)
    with pytest.raises(ValueError, match="prepacked"):
        Elmo(prepacked, freeze=False)
