"""ELMo for downstream models: boundaries, what learns and what does not, dropout, several mixes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.elmo import Elmo, add_boundaries, batch_to_ids
from elmokit.nn.inference import prepack
from elmokit.text.characters import TruncationWarning, encode_sentences

SENTENCES = [["I", "like", "apples"], ["plays"], [], ["an", "œuvre"]]
SHAPES = [SENTENCES, [["one"]], [["a", "b"] * 4, ["c"]], [["words"] * 9] * 5]
WORD_IDS = BiLMConfig(LSTMConfig(2, 6, 4), None, num_words=9, boundary_words=(3, 7))


def tiny() -> BiLM:
    torch.manual_seed(0)
    return BiLM(BiLMConfig.preset("tiny"))


def ids() -> Tensor:
    return torch.from_numpy(encode_sentences(SENTENCES)).long()


def test_boundaries_stand_around_the_words_of_each_row() -> None:
    explicit = encode_sentences([["<S>", *sentence, "</S>"] for sentence in SENTENCES])
    np.testing.assert_array_equal(add_boundaries(ids(), tiny().token_encoder).numpy(), explicit)


def test_boundaries_of_word_ids_are_the_rows_that_the_configuration_names() -> None:
    padded = add_boundaries(torch.tensor([[2, 3, 5], [9, 0, 0], [0, 0, 0]]), BiLM(WORD_IDS).token_encoder)
    assert padded.tolist() == [[4, 2, 3, 5, 8], [4, 9, 8, 0, 0], [4, 8, 0, 0, 0]]


def test_a_word_id_model_mixes_too() -> None:
    out = Elmo(BiLM(WORD_IDS))(torch.tensor([[2, 3, 5], [9, 0, 0]]))
    assert out.representations[0].shape == (2, 3, 8)
    assert out.mask.tolist() == [[True, True, True], [True, False, False]]


def test_representations_are_mixes_of_the_layers_between_the_boundaries() -> None:
    elmo = Elmo(tiny()).eval()
    out, mask = elmo(ids()), (ids() > 0).any(dim=-1)
    layers = elmo.bilm(add_boundaries(ids(), elmo.bilm.token_encoder)).layers[:, :, 1:-1]
    assert torch.equal(out.mask, mask)
    torch.testing.assert_close(out.representations[0][mask], layers.mean(dim=0)[mask])
    assert not out.representations[0][~mask].any()


def test_a_sentence_does_not_depend_on_its_batch() -> None:
    elmo = Elmo(tiny()).eval()
    together = elmo(ids()).representations[0]
    for row, sentence in enumerate(SENTENCES):
        alone = elmo(torch.from_numpy(encode_sentences([sentence])).long()).representations[0]
        torch.testing.assert_close(alone[0], together[row, : len(sentence)], atol=1e-6, rtol=0)


def test_state_is_an_argument_and_a_result() -> None:
    elmo = Elmo(tiny()).eval()
    first = elmo(ids())
    second, again = elmo(ids(), first.state), elmo(ids())
    assert torch.equal(first.representations[0], again.representations[0])  # nothing hides in the module
    assert not torch.allclose(first.representations[0], second.representations[0])
    expected = (
        elmo.bilm(add_boundaries(ids(), elmo.bilm.token_encoder), state=first.state).layers[:, 0, 1:4].mean(dim=0)
    )
    torch.testing.assert_close(second.representations[0][0], expected)


def test_a_frozen_bilm_gets_no_gradient_and_its_mixes_do() -> None:
    elmo = Elmo(tiny())
    out = elmo(ids()).representations[0]
    out.square().sum().backward()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in elmo.bilm.parameters())
    assert elmo.mixes[0].weights.grad is not None and elmo.mixes[0].weights.grad.any()


def test_fine_tuning_reaches_every_parameter() -> None:
    elmo = Elmo(tiny(), freeze=False)
    elmo(ids()).representations[0].square().sum().backward()
    for name, parameter in elmo.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_a_bilm_that_was_frozen_can_be_fine_tuned_later() -> None:
    bilm = tiny()
    Elmo(bilm, freeze=True)
    Elmo(bilm, freeze=False)
    assert all(parameter.requires_grad for parameter in bilm.parameters())


def test_parts_of_a_frozen_bilm_may_be_unfrozen() -> None:
    elmo = Elmo(tiny())
    assert "frozen" in repr(elmo)
    elmo.bilm.sequence_encoder.requires_grad_(True)
    elmo(ids()).representations[0].square().sum().backward()
    assert all(weight.grad is not None for weight in elmo.bilm.sequence_encoder.parameters())
    assert all(weight.grad is None for weight in elmo.bilm.token_encoder.parameters())
    assert "trainable" in repr(elmo)


@pytest.mark.parametrize("freeze", [True, False])
def test_what_a_hook_adds_to_a_bilm_learns(freeze: bool) -> None:
    elmo = Elmo(tiny(), freeze=freeze)
    elmo.bilm.requires_grad_(False)
    adapter = torch.zeros(16, requires_grad=True)
    elmo.bilm.sequence_encoder.stacks[0].layers[0].register_forward_hook(
        lambda *args: (args[2][0] + adapter, args[2][1])
    )
    elmo(ids()).representations[0].sum().backward()
    assert adapter.grad is not None and adapter.grad.any()


def test_what_a_hook_keeps_is_not_overwritten() -> None:
    elmo, kept = Elmo(tiny()).eval(), []
    layer = elmo.bilm.sequence_encoder.stacks[0].layers[1]  # whose input is added to its output
    layer.register_forward_hook(lambda *args: kept.append((args[2][0], args[2][0].clone())))
    with torch.no_grad():
        elmo(ids())
    ((now, then),) = kept
    assert torch.equal(now, then)


def test_weights_written_past_the_counters_are_prepacked_again_when_asked() -> None:
    elmo = Elmo(tiny()).eval()
    elmo(ids())
    for weight in elmo.bilm.parameters():
        weight.data.mul_(3)
    elmo.forget_prepacked()
    expected = Elmo(elmo.bilm).eval()(ids()).representations[0]
    torch.testing.assert_close(elmo(ids()).representations[0], expected)


class Counter(TorchDispatchMode):
    """Counts the operations of its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.count += 1
        return function(*arguments, **(options or {}))


def test_operations_are_counted_on_the_thread_that_asks(num_threads: Callable[[int], None]) -> None:
    counts = []
    for threads in (1, 2):
        num_threads(threads)
        elmo = Elmo(tiny(), freeze=False, dropout=0.0)
        elmo(ids())  # the first call tests the kernels
        with Counter() as counter:
            elmo(ids())
        counts.append(counter.count)
    assert counts[0] == counts[1] > 10


def test_operations_are_observed_on_the_thread_that_asks(num_threads: Callable[[int], None]) -> None:
    counts = []
    for threads in (1, 2):
        num_threads(threads)
        elmo, seen = Elmo(tiny(), freeze=False, dropout=0.0), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, seen=seen: seen.append(1) or tensor, lambda it: it
        ):
            elmo(ids())
        counts.append(len(seen))
    assert counts[0] == counts[1] > 10


def test_ids_may_be_of_any_integer_type() -> None:
    elmo = Elmo(tiny(), freeze=False, dropout=0.0)
    torch.testing.assert_close(elmo(ids().to(torch.int16)).representations[0], elmo(ids()).representations[0])


@pytest.mark.parametrize("freeze", [True, False])
def test_a_bilm_on_the_cpu_runs_where_another_device_is_the_default(freeze: bool) -> None:
    elmo, batch = Elmo(tiny(), freeze=freeze, dropout=0.0), ids()
    expected = elmo(batch).representations[0]
    with torch.device("meta"):  # stands for a GPU
        found = elmo(batch).representations[0]
        found.sum().backward()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3), (torch.float64, 1e-5)])
@pytest.mark.parametrize("freeze", [True, False])
def test_elmo_in_another_number_type_gives_representations_of_that_type(
    dtype: torch.dtype, tolerance: float, freeze: bool
) -> None:
    expected = Elmo(tiny(), freeze=freeze).eval()(ids()).representations[0].detach()
    elmo = Elmo(tiny(), freeze=freeze).to(dtype).eval()
    (found,) = elmo(ids()).representations
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=tolerance * float(expected.abs().max()), rtol=0)
    found.sum().backward()
    assert all(weight.grad is not None for weight in elmo.parameters() if weight.requires_grad)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_a_compiled_elmo_takes_batches_of_any_shape() -> None:
    elmo = Elmo(tiny()).eval()
    compiled = torch.compile(elmo)
    for sentences in SHAPES:
        batch = batch_to_ids(sentences)
        torch.testing.assert_close(compiled(batch).representations[0], elmo(batch).representations[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_a_compiled_bilm_is_left_as_it_is() -> None:
    """Traced into the kernels, it would be compiled in many pieces, and anew for each shape."""
    bilm, pieces = tiny(), []
    compiled = torch.compile(bilm, backend=lambda piece, _: pieces.append(piece) or piece.forward)
    for sentences in SHAPES:
        batch = batch_to_ids(sentences)
        torch.testing.assert_close(compiled(batch).layers, bilm(batch).layers)
    assert not pieces


@pytest.mark.parametrize("freeze", [True, False])
def test_the_bilm_runs_where_pytorch_starts_no_threads(num_threads: Callable[[int], None], freeze: bool) -> None:
    """PyTorch's threads wait, busy, for each other: slow where another process has a core."""
    num_threads(2)
    elmo, seen = Elmo(tiny(), freeze=freeze), []
    elmo.bilm.token_encoder.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    elmo(ids()).representations[0].sum().backward()
    assert (seen, torch.get_num_threads()) == ([1], 2)


def test_dropout_is_for_training_only_and_differs_between_mixes() -> None:
    elmo = Elmo(tiny(), num_mixes=2, dropout=0.5)
    mask = (ids() > 0).any(dim=-1)
    first, second = (mix[mask] for mix in elmo(ids()).representations)
    assert 0.3 < (first == 0).double().mean() < 0.7
    assert not torch.equal(first == 0, second == 0)
    first, second = (mix[mask] for mix in elmo.eval()(ids()).representations)
    assert (first != 0).all() and torch.equal(first, second)


def test_several_mixes_learn_apart() -> None:
    torch.manual_seed(0)
    elmo = Elmo(tiny(), num_mixes=2, dropout=0.0)
    optimizer = torch.optim.SGD([p for p in elmo.parameters() if p.requires_grad], lr=0.5)
    before = {name: value.clone() for name, value in elmo.bilm.state_dict().items()}
    for _ in range(5):
        first, second = elmo(ids()).representations
        loss = (first - 1).square().mean() + (second + 1).square().mean() + elmo.penalty(0.001)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not torch.allclose(elmo.mixes[0].gamma, elmo.mixes[1].gamma)
    assert not torch.allclose(elmo.mixes[0].weights, elmo.mixes[1].weights)
    assert all(torch.equal(value, before[name]) for name, value in elmo.bilm.state_dict().items())


def test_layers_computed_before_mix_to_the_same_representations() -> None:
    elmo = Elmo(tiny(), num_mixes=2).eval()
    out = elmo(ids())
    layers = elmo.bilm(add_boundaries(ids(), elmo.bilm.token_encoder)).layers[:, :, 1:-1]
    for left, right in zip(elmo.mix(layers, out.mask), out.representations, strict=True):
        torch.testing.assert_close(left, right)


def test_fixed_weights_choose_layers() -> None:
    elmo = Elmo(tiny(), fixed_weights=[-1e4, -1e4, 0.0]).eval()
    out = elmo(ids())
    top = elmo.bilm(add_boundaries(ids(), elmo.bilm.token_encoder)).layers[-1, :, 1:-1]
    torch.testing.assert_close(out.representations[0][out.mask], top[out.mask])
    assert not out.representations[0].requires_grad


def test_the_penalty_sums_over_mixes() -> None:
    elmo = Elmo(tiny(), num_mixes=2)
    with torch.no_grad():
        elmo.mixes[0].weights.fill_(1.0)
        elmo.mixes[1].weights.fill_(2.0)
    assert elmo.penalty(0.1).item() == pytest.approx(0.1 * (3 + 12))


def test_batch_to_ids_gives_rows_of_bytes_and_marks() -> None:
    ids = batch_to_ids([["hé", "<S>"], ["a"]], max_characters=6)
    begin, end, pad = 259, 260, 261  # bilm-tf's 258, 259 and 260, shifted by one
    first = [begin, ord("h") + 1, *(byte + 1 for byte in "é".encode()), end, pad]
    assert ids.dtype == torch.int64
    assert ids.tolist() == [
        [first, [begin, 257, end, pad, pad, pad]],
        [[begin, ord("a") + 1, end, pad, pad, pad], [0] * 6],
    ]


def test_ids_that_are_narrower_than_the_model_reads_give_the_same_vectors() -> None:
    """In training every filter saw windows of padding after a word."""
    elmo, sentences = Elmo(tiny()).eval(), [["the", "characteristics", "of"], ["misunderstanding"]]
    wide, narrow = (elmo(batch_to_ids(sentences, width)).representations[0] for width in (50, 18))
    torch.testing.assert_close(narrow, wide, rtol=0, atol=0)


def test_batch_to_ids_refuses_a_width_in_which_no_character_fits() -> None:
    with pytest.raises(ValueError, match="max_characters must be at least 3, with the two marks around a word, not 2"):
        batch_to_ids([["a"]], 2)


def test_batch_to_ids_warns_of_truncated_words_and_refuses_strings() -> None:
    with pytest.warns(TruncationWarning, match="1 word is too long and is cut after 48 bytes"):
        ids = batch_to_ids([["a" * 49, "a" * 48]])
    assert torch.equal(ids[0, 0], ids[0, 1])
    for sentences in ("a b", ["a b"]):
        with pytest.raises(ValueError, match="lists of tokens"):
            batch_to_ids(sentences)


def test_elmo_says_what_to_write_when_given_a_whole_model_or_words() -> None:
    with pytest.raises(ValueError, match=r"not Pretrained: write Elmo\(elmokit.load\(...\).bilm\)"):
        Elmo(Pretrained(tiny()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_to_ids, not list"):
        Elmo(tiny())([["a"]])
    with pytest.raises(ValueError, match="not ndarray"):
        Elmo(tiny())(np.zeros((1, 1, 50), np.int64))


def test_elmo_refuses_to_train_prepacked_weights_and_to_have_no_mix() -> None:
    prepacked = prepack(tiny(), torch.float32)
    assert not any(weight.requires_grad for weight in Elmo(prepacked).parameters() if weight.ndim > 1)
    with pytest.raises(ValueError, match="prepacked"):
        Elmo(prepacked, freeze=False)
    with pytest.raises(ValueError, match="num_mixes must be an integer, at least 1, not 0"):
        Elmo(tiny(), num_mixes=0)


def test_it_and_its_output_say_in_a_line_what_they_are() -> None:
    elmo = Elmo(BiLM(BiLMConfig.preset("tiny")), num_mixes=2, dropout=0.25)
    assert repr(elmo).startswith("Elmo(2 mixes, dropout 0.25, frozen BiLM(reads characters; ")
    output = elmo(torch.from_numpy(encode_sentences([["a", "b"], ["c"]])).long())
    assert repr(output) == "ElmoOutput(representations (2, 2, 32), (2, 2, 32); 3 words)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ids().float(), r"integers \(B, T, C\)"),
        (ids() > 0, r"integers \(B, T, C\)"),
        (ids()[0], r"integers \(B, T, C\).* not \(3, 50\)"),
        (ids().neg(), r"0 \(padding\) to 261, but are from -261 to 0"),
        (ids() + 1, r"0 \(padding\) to 261, but are from 1 to 262"),
        (ids() * (ids() != 261), "a word's characters end with 261, not with 0"),
        (torch.cat([ids(), ids()], dim=2), "reads 50 characters of a word, not 100: use batch_to_ids"),
    ],
)
def test_ids_that_are_no_words_of_the_model_are_refused(wrong: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Elmo(tiny())(wrong)


def test_what_is_no_word_has_no_ids() -> None:
    with pytest.raises(ValueError, match="sentence 1 has None among its words, which must be strings"):
        batch_to_ids([["a"], ["b", None]])  # type: ignore[list-item]


def test_word_ids_that_the_table_lacks_are_refused() -> None:
    elmo = Elmo(BiLM(WORD_IDS))
    for wrong in ([[1, 10]], [[-1, 2]]):
        with pytest.raises(ValueError, match=r"0 \(padding\) to 9"):
            elmo(torch.tensor(wrong))
    with pytest.raises(ValueError, match=r"integers \(B, T\)"):
        elmo(ids())
