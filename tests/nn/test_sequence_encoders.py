"""Every sequence encoder against its formulas in float64, finite differences, and itself in other
batches.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from backends import FAST_BACKENDS
from sequence_encoders import (
    CARRYING,
    CONFIGS,
    DIM,
    NUM_WORDS,
    LayerOracle,
    random_bilm,
    random_sentences,
)
from torch import Tensor

from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.inference import prepack
from elmokit.ops.packing import PackedText, Packing

# Shorter than the context of the Transformer and than the width of the convolutions, as long, and
# several times longer.
LENGTHS = [3, 1, 17, 5, 6, 2, 4, 33, 16]
SENTENCES = random_sentences(LENGTHS)
ROWS = {"mixed": [0, 1, 0, 1, 1, 0, 2, 3, 2], "one row": [0] * 9, "a row each": list(range(9))}


def word_vectors(bilm: BiLM) -> Tensor:
    return bilm.token_encoder(torch.arange(1, NUM_WORDS + 1))


def run(
    bilm: BiLM,
    sentences: Sequence[Tensor],
    rows: Sequence[int],
    reset: bool = True,
    state: BiLMState | None = None,
    start: BiLMState | None = None,
    words: Tensor | None = None,
) -> tuple[list[Tensor], BiLMState]:
    """The layers (L+1, T, 2D) of each sentence, and the state after them."""
    lengths = list(map(len, sentences))
    text = PackedText.of_sentences(lengths, rows, max(rows) + 1, reset)
    tokens = text.to_streams(torch.cat([*sentences]).expand(2, -1))
    layers, after = bilm.run(
        word_vectors(bilm) if words is None else words, tokens, text.packing, state, start
    )
    return [*text.unpack(layers).split(lengths, dim=1)], after


def halves(layers: Tensor) -> tuple[Tensor, Tensor]:
    fwd, bwd = layers.chunk(2, dim=-1)
    return fwd, bwd


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CONFIGS)
def test_layers_of_packed_sentences_equal_the_formulas(name: str, rows: str) -> None:
    bilm = random_bilm(name)
    oracle = LayerOracle(bilm)
    words = word_vectors(bilm).numpy()
    found, _ = run(bilm, SENTENCES, ROWS[rows], reset=rows != "a row each")
    for sentence, layers in zip(SENTENCES, found, strict=True):
        np.testing.assert_allclose(
            layers.numpy(), oracle.layers(words[sentence.numpy()]), rtol=1e-9, atol=1e-9
        )
        assert len(layers) == bilm.config.num_representations
        assert layers.shape[2] == bilm.config.output_dim


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_equal_finite_differences(name: str) -> None:
    bilm = random_bilm(name, scale=0.4).requires_grad_(True)
    sentences = random_sentences([7, 2, 1])
    names = [name for name, _ in bilm.sequence_encoder.named_parameters()]
    names = [name for name in names if name != "mask"]  # which only training reads

    def layers(words: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        text = PackedText.of_sentences([7, 2, 1], [0, 1, 0], 2, reset=True)
        tokens = text.to_streams(torch.cat(sentences).expand(2, -1))
        given = dict(zip(names, parameters, strict=True))
        inputs = words, tokens, text.packing, bilm.initial_state(2), None, 0.0
        found, state = torch.func.functional_call(bilm.sequence_encoder, given, inputs)
        return (found, *(part for part in (state.h, state.c) if part.numel()))

    torch.manual_seed(0)  # for gradcheck's directions too
    words = torch.randn(NUM_WORDS, DIM, dtype=torch.float64, requires_grad=True)
    parameters = [
        bilm.sequence_encoder.get_parameter(name).detach().requires_grad_() for name in names
    ]
    assert torch.autograd.gradcheck(layers, (words, *parameters), fast_mode=True)


def test_interleaved_layers_see_both_sides_but_no_word_that_is_hidden() -> None:
    bilm, (sentence,) = random_bilm("interleaved"), random_sentences([9])
    words = torch.cat([word_vectors(bilm), bilm.sequence_encoder.mask[None]])
    hidden = torch.where(sentence == sentence[4], NUM_WORDS, sentence)

    def top(words: Tensor) -> Tensor:
        return run(bilm, [hidden], [0], words=words)[0][0][-1]

    changed = words.clone()
    neighbour = words.clone()
    changed[sentence[4]] += 1
    neighbour[sentence[5]] += 1
    assert torch.equal(top(words), top(changed))
    for half in halves(top(words) - top(neighbour)):
        assert half[4].abs().min() > 0


# --- State ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [[13, 27], [1, 2, 3], list(range(1, 40))])
@pytest.mark.parametrize("name", CARRYING)
def test_text_in_windows_that_carry_state_is_as_the_whole(name: str, cuts: list[int]) -> None:
    bilm = random_bilm(name)
    rows = random_sentences([40, 40, 40])
    whole, last = run(bilm, rows, [0, 1, 2], reset=False)
    state = bilm.initial_state(3)
    pieces = []
    # The backward direction goes on from what it has read before, so that its windows come from the
    # end.
    for begin, end in zip([0, *cuts], [*cuts, 40], strict=True):
        text = PackedText.of_sentences([end - begin] * 3, [0, 1, 2], 3, reset=False)
        forward = torch.cat([row[begin:end] for row in rows])
        backward = torch.cat([row[40 - end : 40 - begin] for row in rows])
        tokens = text.to_streams(torch.stack([forward, backward]))
        layers, state = bilm.run(word_vectors(bilm), tokens, text.packing, state)
        pieces.append(text.unpack(layers).unflatten(1, (3, -1)))
    fwd = torch.cat([halves(piece)[0] for piece in pieces], dim=2)
    bwd = torch.cat([halves(piece)[1] for piece in reversed(pieces)], dim=2)
    expected = torch.stack(whole, dim=1)
    torch.testing.assert_close(torch.cat([fwd, bwd], dim=-1), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close((state.h, state.c), (last.h, last.c), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CARRYING)
def test_a_start_state_is_what_every_reset_sets(name: str) -> None:
    bilm, (first, *sentences) = random_bilm(name), random_sentences([4, 6, 1, 3])
    _, start = run(bilm, [first], [0])
    found, _ = run(bilm, sentences, [0, 1, 0], start=start)
    for sentence, layers in zip(sentences, found, strict=True):
        expected, _ = run(bilm, [sentence], [0], reset=False, state=start)
        torch.testing.assert_close(layers, expected[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CARRYING)
def test_rows_without_a_word_keep_their_state(name: str) -> None:
    bilm = random_bilm(name)
    _, state = run(bilm, random_sentences([4, 2, 9]), [0, 1, 2])
    text = PackedText.of_sentences([3], [1], 3, reset=False)
    _, after = bilm.run(
        word_vectors(bilm),
        text.to_streams(torch.tensor([1, 2, 3]).expand(2, -1)),
        text.packing,
        state,
    )
    for part, before in ((after.h, state.h), (after.c, state.c)):
        assert torch.equal(part[:, :, [0, 2]], before[:, :, [0, 2]])
    assert not torch.equal(after.h[:, :, 1], state.h[:, :, 1])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_state_of_other_rows_or_another_model_is_refused(name: str) -> None:
    bilm = random_bilm(name)
    other = random_bilm("lstm" if name != "lstm" else "transformer").initial_state(1)
    for given in ({"state": bilm.initial_state(2)}, {"state": other}, {"start": other}):
        with pytest.raises(ValueError, match="the state of 1 rows"):
            run(bilm, random_sentences([3]), [0], **given)


# --- Use ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_no_word_at_all_gives_no_vector(name: str) -> None:
    bilm = random_bilm(name)
    layers, _ = bilm.run(
        word_vectors(bilm), torch.zeros(2, 0, dtype=torch.int64), Packing.rectangle(0, 2)
    )
    assert layers.shape == (bilm.config.num_representations, 2, 0, DIM)
    assert bilm(torch.zeros(2, 3, dtype=torch.int64)).layers.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("backend_name", FAST_BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_prepacked_layers_are_near_the_exact_ones(
    name: str, backend_name: str, dtype: torch.dtype, backend: Callable[[str], None]
) -> None:
    backend(backend_name)
    bilm = random_bilm(name, scale=0.3)
    expected, _ = run(bilm, SENTENCES, ROWS["mixed"])
    prepacked = prepack(bilm if dtype == torch.float64 else bilm.float(), dtype)
    found, _ = run(prepacked, SENTENCES, ROWS["mixed"])
    tolerance = {
        torch.float64: 1e-10,
        torch.float32: 1e-5,
        torch.float16: 1e-2,
        torch.bfloat16: 5e-2,
    }[dtype]
    for exact, layers in zip(expected, found, strict=True):
        assert layers.dtype == torch.promote_types(dtype, torch.float32)
        assert (layers - exact).norm() < tolerance * exact.norm()
    least = 1e-5 if dtype in (torch.float16, torch.bfloat16) else 0
    assert (found[-1] - expected[-1]).norm() >= least * expected[-1].norm()


@pytest.mark.native(torch.int8)
@pytest.mark.parametrize("name", CONFIGS)
def test_int8_layers_are_near_the_exact_ones(name: str) -> None:
    bilm = random_bilm(name, scale=0.3)
    expected, _ = run(bilm, SENTENCES, ROWS["mixed"])
    found, _ = run(prepack(bilm.float(), torch.int8), SENTENCES, ROWS["mixed"])
    for exact, layers in zip(expected, found, strict=True):
        assert 0 < (layers - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CONFIGS)
def test_layers_under_autocast_are_float32_and_have_gradients(
    name: str, dtype: torch.dtype
) -> None:
    bilm = random_bilm(name, scale=0.3).float().requires_grad_(True)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        found, _ = run(bilm, SENTENCES, ROWS["mixed"])
        torch.cat(found, dim=1).square().mean().backward()
    assert all(layers.dtype == torch.float32 for layers in found)
    exact, _ = run(bilm.double(), SENTENCES, ROWS["mixed"])
    for layers, expected in zip(found, exact, strict=True):
        assert (layers - expected).norm() < (
            0.05 if dtype == torch.bfloat16 else 1e-5
        ) * expected.norm()
    with_gradients = {name for name, weight in bilm.named_parameters() if weight.grad is not None}
    assert {name for name, _ in bilm.named_parameters()} - with_gradients <= {
        "sequence_encoder.mask"
    }
