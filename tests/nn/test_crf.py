"""The CRF against enumeration of every tag sequence."""

import itertools
import math

import pytest
import torch

from elmokit.nn.crf import CRF, span_transitions

LENGTHS = [5, 1, 3]
K = 4


@pytest.fixture
def crf():
    torch.manual_seed(0)
    crf = CRF(K).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf


@pytest.fixture
def scores():
    torch.manual_seed(1)
    return torch.randn(len(LENGTHS), max(LENGTHS), K, dtype=torch.float64)


@pytest.fixture
def mask():
    return torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def path_score(crf, scores, path):
    """Plain sum over one sentence's (T, K) scores."""
    emitted = sum(scores[t, tag].item() for t, tag in enumerate(path))
    moved = sum(crf.step[left, right].item() for left, right in itertools.pairwise(path))
    return emitted + moved + crf.first[path[0]].item() + crf.last[path[-1]].item()


def all_paths(crf, scores, length):
    return {
        path: path_score(crf, scores, path) for path in itertools.product(range(K), repeat=length)
    }


def test_likelihood_is_that_of_enumeration(crf, scores, mask):
    tags = torch.randint(K, mask.shape, generator=torch.Generator().manual_seed(2))
    found = crf.log_likelihood(scores, tags, mask)
    for row, length in enumerate(LENGTHS):
        paths = all_paths(crf, scores[row], length)
        gold = paths[tuple(tags[row, :length].tolist())]
        total = torch.logsumexp(torch.tensor(list(paths.values()), dtype=torch.float64), 0)
        torch.testing.assert_close(found[row], gold - total)


def test_marginals_are_those_of_enumeration_in_inference_mode_too(crf, scores, mask):
    expected = torch.zeros(scores.shape, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        paths = all_paths(crf, scores[row], length)
        total = torch.logsumexp(torch.tensor(list(paths.values()), dtype=torch.float64), 0)
        for path, score in paths.items():
            expected[row, range(length), path] += math.exp(float(score) - float(total))
    torch.testing.assert_close(crf.marginals(scores, mask).double(), expected, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        found = crf.marginals(scores + 0, mask.clone())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_padding_changes_nothing(crf, scores, mask):
    tags = torch.ones(mask.shape, dtype=torch.int64)
    noisy = torch.where(mask[..., None], scores, 1e3)
    garbage = torch.where(mask, tags, -100)
    torch.testing.assert_close(
        crf.log_likelihood(noisy, garbage, mask), crf.log_likelihood(scores, tags, mask)
    )
    assert torch.equal(crf.decode(noisy, mask), crf.decode(scores, mask))


def test_decoding_finds_the_best_of_all_paths(crf, scores, mask):
    decoded = crf.decode(scores, mask)
    for row, length in enumerate(LENGTHS):
        paths = all_paths(crf, scores[row], length)
        assert tuple(decoded[row, :length].tolist()) == max(paths, key=lambda path: paths[path])
        assert not decoded[row, length:].any()


@pytest.mark.parametrize(
    "tags, good, bad",
    [
        (
            ["O", "B-X", "I-X", "B-Y", "I-Y"],
            ["O", "B-X B-X", "B-X I-X I-X O", "B-Y I-Y B-X", "O B-Y"],
            ["I-X", "O I-X", "B-X I-Y", "B-X I-X I-Y"],
        ),
        (
            ["O", "B-X", "I-X", "E-X", "S-X", "E-Y"],
            ["O", "S-X S-X", "B-X E-X O", "B-X I-X E-X B-X E-X"],
            ["B-X", "I-X E-X", "B-X O", "S-X E-X", "B-X I-X", "B-X E-Y", "O E-X", "B-X S-X"],
        ),
    ],
)
def test_moves_of_the_span_schemes(tags, good, bad):
    allowed = span_transitions(tags)

    def accepts(path):
        ids = [tags.index(tag) for tag in path.split()]
        steps = all(bool(allowed.step[pair]) for pair in itertools.pairwise(ids))
        return bool(allowed.first[ids[0]]) and steps and bool(allowed.last[ids[-1]])

    assert [path for path in good if not accepts(path)] == []
    assert [path for path in bad if accepts(path)] == []


def test_decoding_keeps_to_the_allowed_moves():
    tags = ["O", "B-X", "I-X", "I-Y"]
    allowed = span_transitions(tags)
    torch.manual_seed(3)
    crf = CRF.of_spans(tags)
    mask = torch.ones(50, 6, dtype=torch.bool)
    decoded = crf.decode(3 * torch.randn(50, 6, len(tags)), mask)
    assert allowed.first[decoded[:, 0]].all()
    assert allowed.last[decoded[:, -1]].all()
    assert allowed.step[decoded[:, :-1], decoded[:, 1:]].all()
