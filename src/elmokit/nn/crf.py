"""Linear-chain conditional random field over tags (Lafferty et al., 2001), batched and masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

# The score of a forbidden transition in decoding: finite, so that a best path exists even if every
# path is forbidden.
FORBIDDEN = -10000.0


class Transitions(NamedTuple):
    """Allowed transitions of tags: `first` (K,), `step` (K, K) from row to column, `last` (K,)."""

    first: Tensor
    step: Tensor
    last: Tensor


def span_transitions(tags: Sequence[str]) -> Transitions:
    """The transitions between tags that IOB2 (O, B-X, I-X) allows or, if E-X or S-X is among the
    tags, BIOES.

    IOB1 needs no such rules: there every I-X may begin a span.
    """
    # I-PER begins with the prefix I, and its span is of the type PER.
    prefixes = [tag.partition("-")[0] for tag in tags]
    types = [tag.partition("-")[2] for tag in tags]
    closes = bool({"E", "S"} & set(prefixes))
    begins = torch.tensor([prefix in ("O", "B", "S") for prefix in prefixes])
    ends = torch.tensor([prefix in ("O", "E", "S") or not closes for prefix in prefixes])
    inside = torch.tensor([prefix in ("B", "I") for prefix in prefixes])
    same_type = torch.tensor([[left == right for right in types] for left in types])
    # Of two neighbours, either the left one ends a span and the right one begins one, or both are
    # in the same span.
    goes_on = inside[:, None] & ~begins[None, :] & same_type
    begins_anew = ends[:, None] & begins[None, :]
    return Transitions(begins, begins_anew | goes_on, ends)


class CRF(nn.Module):
    """Scores tag sequences: the sum of given scores of tags at tokens, and of learned scores of the
    first tag, of each pair of neighbours, and of the last tag.

    Rules of `of_spans` restrict what `decode` returns, but not the likelihood, so that gold tags
    that break one do not make the loss infinite. Masks are bool and True from the first token to
    the last: padding is on the right.
    """

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.step = nn.Parameter(torch.empty(num_tags, num_tags).uniform_(-0.1, 0.1))
        self.last = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        for name, scores in [*self.named_parameters()]:
            self.register_buffer(f"{name}_penalty", torch.zeros(scores.shape), persistent=False)

    @staticmethod
    def of_spans(tags: Sequence[str]) -> CRF:
        """A CRF over tags of a span scheme, which decodes well-formed spans only."""
        crf = CRF(len(tags))
        for penalty, allowed in zip(crf.buffers(), span_transitions(tags), strict=True):
            penalty.masked_fill_(~allowed, FORBIDDEN)
        return crf

    def log_likelihood(self, scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Log-probability (B,) of tags (B, T), from scores (B, T, K) and mask (B, T)."""
        # Of a sentence with tags a, b and c:
        #
        #     scores[0, a]     scores[1, b]     scores[2, c]      emitted
        #              step[a, b]       step[b, c]                moved
        #     first[a]                               last[c]
        tags = tags.masked_fill(~mask, 0)  # padding may hold anything
        emitted = scores.gather(2, tags[..., None]).squeeze(2)
        emitted = emitted.masked_fill(~mask, 0).sum(1)
        moved = self.step[tags[:, :-1], tags[:, 1:]]
        moved = moved.masked_fill(~mask[:, 1:], 0).sum(1)
        rows = torch.arange(len(tags), device=tags.device)
        last_tags = tags[rows, mask.sum(1) - 1]
        path = emitted + moved + self.first[tags[:, 0]] + self.last[last_tags]
        return path - self._log_partition(scores, mask)

    def _log_partition(self, scores: Tensor, mask: Tensor) -> Tensor:
        total = self.first + scores[:, 0]  # (B, K): log-sum of all paths that end in each tag
        for t in range(1, scores.shape[1]):
            # (B, left, right): every path to t - 1, and every step from there
            paths = total[:, :, None] + self.step
            longer = torch.logsumexp(paths, dim=1) + scores[:, t]
            total = torch.where(mask[:, t, None], longer, total)
        return torch.logsumexp(total + self.last, dim=1)

    @torch.no_grad()
    def decode(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The best allowed tag sequence of each row (Viterbi), (B, T) int64 with 0 at padding."""
        pairs = zip(self.parameters(), self.buffers(), strict=True)
        first, step, last = (learned + penalty for learned, penalty in pairs)
        best = first + scores[:, 0]  # (B, K): score of the best path that ends in each tag
        # of step t: the tag at t - 1 on the best path to each tag at t; padding stays where it is
        sources = []
        stay = torch.arange(best.shape[1], device=scores.device).expand_as(best)
        for t in range(1, scores.shape[1]):
            # (B, left, right): the best path to each tag at t - 1, and every step from there
            longer, source = (best[:, :, None] + step).max(dim=1)
            is_token = mask[:, t, None]
            best = torch.where(is_token, longer + scores[:, t], best)
            sources.append(torch.where(is_token, source, stay))
        # Back from the best last tag: the source of each tag is the one before it.
        path = [(best + last).argmax(dim=1)]
        for source in reversed(sources):
            last_tags = path[-1][:, None]
            path.append(source.gather(1, last_tags).squeeze(1))
        tags = torch.stack(path[::-1], dim=1)
        return tags.masked_fill(~mask, 0)

    def marginals(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Probability of each tag (B, T, K), the gradient of the log partition; 0 at padding."""
        with torch.inference_mode(False), torch.enable_grad():
            # copies, since tensors of inference mode have no gradients and are not saved for them
            scores = scores.detach().clone().requires_grad_()
            total = self._log_partition(scores, mask.clone()).sum()
            (marginals,) = torch.autograd.grad(total, scores)
        return marginals
