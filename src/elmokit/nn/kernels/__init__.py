"""Fast paths, each tested equal to what it replaces; dropout, in its chances. What is not compiled runs in PyTorch.

What the network calls, of which every function says in its docstring what it computes:

    packed              the recurrence of a layer over a stream, with gradients: `nn.lstm.lstm_reference`, only faster
    both_linear         the input products of a layer
    pooled_characters   convolutions over characters and their maxima
    highway             a highway layer
    rows                rows of a table, such as the softmax's weight
    linear_logsumexp    the denominator of the softmax
    dropout             values set to zero by chance
    text_order          from streams to the vectors of sentences
    directions          a function on two cores, or on all

What lies beneath `packed`: `passes` names the tensors that a pass over a stream reads and writes. `fused` runs it as
one compiled call for all steps; `stepwise` runs it in PyTorch, step by step on any device, with the compiled `cell`.
Beneath the others: `products` multiplies by weights that were packed once, `packed_logsumexp` is the softmax made of
such products, `pooled_convolution` what convolutions are without tables. `memory` is where large arrays come from, and
`kept_graph` tells whether a backward pass may write over what was saved for it.

In C, all of it one library (`library`): avx512.c, which includes avx512_*.h, is `products`, `fused` and
`packed_logsumexp`; cell.c, highway.c, characters.c and text_order.c are built for any processor.
"""
