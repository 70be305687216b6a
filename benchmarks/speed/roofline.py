"""The roofline: the least number of operations of a task, divided by the best rate that this
machine reaches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from elmokit.config import BiLMConfig, CharCNNConfig
from elmokit.ops.dispatch import explain
from elmokit.ops.native.gemm import prepack, product, result_dtype, value_dtype
from elmokit.text.characters import BOS, EOS

ROWS = (64, 128, 256, 512)
INTERVALS, SECONDS_OF_AN_INTERVAL = 6, 0.05
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BYTES_OF_A_WORD, MARKS_OF_A_WORD = 48, 2
Product = Callable[[], object]


# --- Operations: a multiplication and an addition count as two ------------------------------------


def product_operations(rows: int, inputs: int, outputs: int) -> int:
    """Operations of a matrix product (rows, inputs) x (inputs, outputs)."""
    return 2 * rows * inputs * outputs


def word_operations(char_cnn: CharCNNConfig, dim: int, word: str) -> int:
    """Operations of the character encoder for one word: convolutions, highway layers, projection.

    Positions after the word hold padding, for which each filter has the same value everywhere: they
    count once.
    """
    characters = min(len(word.encode()), BYTES_OF_A_WORD) + MARKS_OF_A_WORD
    operations, filters = 0, char_cnn.num_filters
    for width, number in char_cnn.filters:
        places = min(characters + 1, char_cnn.max_characters - width + 1)
        operations += product_operations(places, width * char_cnn.embedding_dim, number)
    operations += char_cnn.num_highway * product_operations(1, filters, 2 * filters)
    return operations + product_operations(1, filters, dim)


def input_operations(config: BiLMConfig, rows: int) -> int:
    """Operations of the input products (four gates) of one layer in one direction."""
    return product_operations(rows, config.lstm.projection_dim, 4 * config.lstm.cell_dim)


def recurrent_operations(config: BiLMConfig, rows: int) -> int:
    """Operations of the recurrent products and projections of one layer in one direction."""
    dim, cell_dim = config.lstm.projection_dim, config.lstm.cell_dim
    return product_operations(rows, dim, 4 * cell_dim) + product_operations(rows, cell_dim, dim)


def embedding_operations(config: BiLMConfig, sentences: Iterable[Sequence[str]]) -> int:
    """The least number of operations for all layers of all sentences.

    Counted once for each distinct word: the character encoder, and the first layer's input products
    in both directions. Counted for each word, in both directions: the recurrent products and
    projections of every layer, and the input products of the upper ones. Boundaries only count
    among the distinct words, since the first one has the same effect on every sentence, and the
    last one has none.
    """
    sentences = list(sentences)
    assert config.char_cnn is not None
    distinct = {BOS, EOS, *(word for words in sentences for word in words)}
    positions = sum(map(len, sentences))
    operations = sum(
        word_operations(config.char_cnn, config.lstm.projection_dim, word) for word in distinct
    )
    operations += 2 * input_operations(config, len(distinct))
    layers = config.lstm.num_layers
    operations += 2 * layers * recurrent_operations(config, positions)
    return operations + 2 * (layers - 1) * input_operations(config, positions)


def training_operations(
    config: BiLMConfig, words: Sequence[str], positions: int, samples: int
) -> int:
    """The least number of operations of a training step.

    The same as for embedding, except that the first layer's input products are counted for each
    position, since dropout makes every input different, and that the sampled softmax is added. The
    gradients of the inputs and of the weights together cost twice as much as the forward pass.

    Args:
        config: The model.
        words: The distinct words of the window.
        positions: Positions of the window in one direction.
        samples: Negative samples of the softmax.
    """
    assert config.char_cnn is not None
    dim, layers = config.lstm.projection_dim, config.lstm.num_layers
    forward = sum(word_operations(config.char_cnn, dim, word) for word in words)
    forward += (
        2 * layers * (recurrent_operations(config, positions) + input_operations(config, positions))
    )
    forward += 2 * product_operations(positions, dim, samples + 1)
    return 3 * forward


# --- Rate: operations per second ------------------------------------------------------------------


def torch_linear(rows: int, inputs: int, outputs: int, dtype: str) -> Product:
    """A product in PyTorch, with the weight stored as in a linear layer."""
    if dtype == "int8":
        x, weight = (
            torch.randint(-9, 9, shape, dtype=torch.int8)
            for shape in ((rows, inputs), (outputs, inputs))
        )
        return lambda: torch._int_mm(x, weight.T)  # pyright: ignore[reportPrivateImportUsage]
    x, weight = (
        torch.randn(rows, inputs, dtype=DTYPES[dtype]),
        torch.randn(outputs, inputs, dtype=DTYPES[dtype]),
    )
    return lambda: torch.nn.functional.linear(x, weight)


def torch_matmul(rows: int, inputs: int, outputs: int, dtype: str) -> Product | None:
    """The same with a transposed weight, which suits some shapes better."""
    if dtype == "int8":
        return None
    x, weight = (
        torch.randn(rows, inputs, dtype=DTYPES[dtype]),
        torch.randn(inputs, outputs, dtype=DTYPES[dtype]),
    )
    return lambda: x @ weight


def elmokit_product(rows: int, inputs: int, outputs: int, dtype: str) -> Product | None:
    """elmokit's product with a prepacked weight; in int8 the quantisation of the rows is
    included.
    """
    kind = DTYPES.get(dtype, torch.int8)
    if explain("prepacked linear", "cpu", kind, inputs)["native"] is not None:
        return None
    x = torch.randn(rows, inputs).to(value_dtype(kind))
    weight = prepack(torch.randn(outputs, inputs), kind)
    out = torch.empty(rows, outputs, dtype=result_dtype(kind))
    return lambda: product(x, weight, out=out)


# By library: a factory of a product (rows, inputs, outputs, dtype), which returns None for
# unsupported types.
PRODUCTS: dict[str, Callable[[int, int, int, str], Product | None]] = {
    "linear": torch_linear,
    "matmul": torch_matmul,
    "elmokit": elmokit_product,
}


def _calls_per_second(product: Product) -> float:
    """The best rate over several intervals, since other load can only lower it."""
    for _ in range(3):
        product()
    best = 0.0
    for _ in range(INTERVALS):
        calls, start = 0, time.perf_counter()
        while (seconds := time.perf_counter() - start) < SECONDS_OF_AN_INTERVAL:
            product()
            calls += 1
        best = max(best, calls / seconds)
    return best


def _one_thread() -> None:
    torch.set_num_threads(1)


def _one_thread_each(make: Callable[[], Product | None], threads: int) -> float:
    """Calls per second of products that run on all cores at the same time, each with one thread."""
    products = [made for made in (make() for _ in range(threads)) if made is not None]
    with ThreadPoolExecutor(threads, initializer=_one_thread) as pool:
        rate = sum(pool.map(_calls_per_second, products))
    torch.set_num_threads(threads)
    return rate


@torch.no_grad()
def product_rates(config: BiLMConfig, dtype: str, rows: Sequence[int] = ROWS) -> dict[str, float]:
    """Operations per second of products of the model's shapes: each on all threads, and one on each
    thread.
    """
    dim, cell_dim, threads = (
        config.lstm.projection_dim,
        config.lstm.cell_dim,
        torch.get_num_threads(),
    )
    shapes = [(m, *sides) for m in rows for sides in ((dim, 4 * cell_dim), (cell_dim, dim))]
    rates = {}
    for (library, make_product), shape in itertools.product(PRODUCTS.items(), shapes):
        make = partial(make_product, *shape, dtype)
        product = make()
        if product is None:
            continue
        name = "{} ({}, {}) x ({}, {})".format(library, *shape[:2], *shape[1:])
        rates[f"{name}, all threads together"] = product_operations(*shape) * _calls_per_second(
            product
        )
        if threads > 1:
            rates[f"{name}, one thread each"] = product_operations(*shape) * _one_thread_each(
                make, threads
            )
    return rates


def roofline(operations: int, words: int, rates: dict[str, float]) -> dict[str, float | str]:
    """The words per second that the best of the rates allows, and the product that reaches it."""
    best = max(rates, key=rates.__getitem__)
    return {
        "operations_per_word": operations / words,
        "operations_per_second": rates[best],
        "best_product": best,
        "words_per_second": words * rates[best] / operations,
    }
