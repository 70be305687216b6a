"""Measure and train on a GPU that is rented for minutes; docs/gpu.md has the calls.

    python recipes/small/on_gpu.py PHASE ... --packed runs/gpu/1 --work DIRECTORY --output
    DIRECTORY

Each phase runs in a process of its own and for a limited time. Where it fails, this is its result,
and the next one begins. Results are in the form of benchmarks/results, in gpu.json of WORK (which
later calls read, and so must not be in the tree) and of OUTPUT. `train` also writes train.jsonl
and, after every evaluation, model.tar.0, .1 and so on.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(Path(__file__).parent)]
import pack_for_gpu
import result_files

from elmokit import (
    BiLM,
    BiLMConfig,
    Embedder,
    PretrainConfig,
    Pretrained,
    Vocab,
    prepack,
    save,
    set_backend,
)
from elmokit.data.batches import PackedBatch
from elmokit.fs.reading import read_lines
from elmokit.nn.lstm import LSTMLayer
from elmokit.ops.dispatch import explain
from elmokit.ops.functional import LSTMState
from elmokit.ops.packing import Packing
from elmokit.text.characters import BOS, EOS
from elmokit.train.loop import measure_heldout
from elmokit.train.trainer import Trainer

UNROLL = 40  # steps of a training window
LAUNCHES = (
    (16, 32, 8, 2),
    (16, 32, 8, 3),
    (16, 64, 8, 2),
    (32, 16, 8, 2),
)  # rows, units, warps, stages
# Training begins with few rows: more of them cost much at first, at equal numbers of words. Shares
# of the time at which the next number of rows begins, and at which the learning rate begins to fall
# to zero:
GROWTH, CONSTANT = (0.0, 0.08, 0.25, 0.5), 0.7
WARM_UP = 300  # steps over which the rate rises at first
WORTH = 1.5  # twice the rows are used if their step takes at most so much longer
PART_BYTES = 15 << 20  # of the model, in the output
HELDOUT_WORDS = 70_000  # during training; all at the end
LOG_EVERY, PROFILED = 20, 5  # steps
Figures = dict[str, Any]
Phase = Callable[[argparse.Namespace], Figures]
PHASES: dict[str, tuple[float, bool, Phase]] = {}


def phase(limit: float, needs_gpu: bool = False) -> Callable[[Phase], Phase]:
    """Register a phase, which may take `limit` seconds."""

    def register(function: Phase) -> Phase:
        PHASES[function.__name__] = limit, needs_gpu, function
        return function

    return register


# --- What several phases use ----------------------------------------------------------------------


def found(options: argparse.Namespace) -> Figures:
    """The results so far."""
    path = options.work / "gpu.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def median_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The median time of a call, after one as a warm-up."""
    run()
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def use_tuning(options: argparse.Namespace) -> None:
    """Launch kernels as `tuning` found best; if `compare` did not accept them, use the portable
    backend.
    """
    if torch.cuda.is_available() and "differences" not in found(options).get("compare", {}):
        set_backend("portable")
    elif best := found(options).get("tuning", {}).get("best"):
        from elmokit.ops import triton as launch

        launch.LAUNCHES.update({name: launch.Launch(*numbers) for name, numbers in best.items()})


def make_trainer(options: argparse.Namespace, rows: int) -> Trainer:
    vocab = Vocab.read(options.vocab)
    settings = PretrainConfig(
        corpus=(options.work / "corpus",),
        output=options.work,
        recipe="muon",
        schedule="none",
        dropout=0.0,
        learning_rate=options.learning_rate,
        batch_size=rows,
        unroll_steps=UNROLL,
        num_samples=options.samples,
        device=device().type,
        seed=options.seed,
    )
    files = sorted((options.work / "corpus").iterdir())
    return Trainer(settings, options.config, vocab, files, total_steps=None)


def with_rows(options: argparse.Namespace, before: Trainer, rows: int) -> Trainer:
    """A trainer with more rows, which goes on with the weights, the optimizer and the text of the
    one before.
    """
    trainer = make_trainer(options, rows)
    trainer.bilm.load_state_dict(before.bilm.state_dict())
    trainer.softmax.load_state_dict(before.softmax.state_dict())
    trainer.optimizer.restore(before.optimizer.tensors())
    trainer.read_from(asdict(before.reader.position), None)
    trainer.step = before.step
    return trainer


# --- Phases that measure --------------------------------------------------------------------------


@phase(25)
def unpack(options: argparse.Namespace) -> Figures:
    if (options.packed / "tokenizer").exists():  # the first part
        shutil.copy(options.packed / "tokenizer", options.work)
        shutil.copytree(options.packed / "allennlp", options.work / "allennlp", dirs_exist_ok=True)
    counts, before = (
        pack_for_gpu.unpack(options.packed, options.work),
        found(options).get("unpack", {}),
    )
    return {name: before.get(name, 0) + count for name, count in counts.items()}


@phase(15, needs_gpu=True)
def ceilings(options: argparse.Namespace) -> Figures:
    """The rates of a copy (bytes read and written) and of a product in bfloat16 (random data)."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    copy = median_seconds(lambda: target.copy_(source))
    size = 8192
    left, right = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    product = median_seconds(lambda: left @ right)
    system = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False).stdout
    return {
        "bytes_per_second": 2 * source.nbytes / copy,
        "operations_per_second": 2 * size**3 / product,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nvidia-smi": system.splitlines(),
    }


@phase(50, needs_gpu=True)
def tests(options: argparse.Namespace) -> Figures:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    command += [
        "--continue-on-collection-errors",
        *(f"tests/{name}" for name in ("ops", "nn", "golden", "embed", "train")),
    ]
    with (options.output / "tests.txt").open("w+", encoding="utf-8") as log:
        status = subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
        log.seek(0)
        return {"status": status, "last_lines": log.read().splitlines()[-12:]}


def lstm_call(
    options: argparse.Namespace, rows: int, backward: bool = True
) -> Callable[[], list[Tensor]]:
    """A call of a layer in one direction, as in a training step, that returns the outputs and all
    gradients.
    """
    torch.manual_seed(rows)
    lstm = options.config.lstm
    width, cells, to = lstm.projection_dim, lstm.cell_dim, device()
    layer = LSTMLayer(width, cells, width, lstm.forget_bias, lstm.cell_clip, lstm.proj_clip).to(to)
    x, gradient = torch.randn(2, UNROLL * rows, width, device=to)
    x, packing = x.requires_grad_(), Packing.rectangle(UNROLL, rows)
    state = LSTMState(torch.zeros(rows, width, device=to), torch.zeros(rows, cells, device=to))

    def run() -> list[Tensor]:
        with torch.autocast(to.type, torch.bfloat16):
            outputs, _ = layer(x, packing, state)
        return [
            outputs,
            *(torch.autograd.grad(outputs, [x, *layer.parameters()], gradient) if backward else ()),
        ]

    return run


@phase(20)
def compare(options: argparse.Namespace) -> Figures:
    """Relative differences of the LSTM's outputs and gradients in bfloat16 from those of the
    portable backend.
    """
    run, lstm = lstm_call(options, rows=128), options.config.lstm
    results = run()
    set_backend("portable")
    differences = [float((a - b).norm() / b.norm()) for a, b in zip(results, run(), strict=True)]
    set_backend(None)
    if not max(differences) < 0.05:
        raise ValueError(f"they are {differences}")
    reasons = explain(
        "lstm",
        device().type,
        torch.bfloat16,
        lstm.projection_dim,
        lstm.projection_dim,
        lstm.cell_dim,
    )
    return {"differences": differences, "backend": list(reasons)[-1]}


@phase(45, needs_gpu=True)
def tuning(options: argparse.Namespace) -> Figures:
    """Times of the LSTM's kernels by launch settings and rows."""
    from elmokit.ops import triton as launch

    times: dict[str, Figures] = {}
    for numbers in LAUNCHES:
        launch.LAUNCHES.update(forward=launch.Launch(*numbers), backward=launch.Launch(*numbers))
        for rows in options.rows:
            try:
                forward, both = (
                    median_seconds(lstm_call(options, rows, backward)) for backward in (False, True)
                )
                times[f"{numbers}, {rows} rows"] = {
                    "forward": 1e3 * forward,
                    "backward": 1e3 * (both - forward),
                }
            except Exception as error:  # too much shared memory, for example
                times[f"{numbers}, {rows} rows"] = {"failed": f"{type(error).__name__}: {error}"}
    best, rows = {}, options.rows[len(options.rows) // 2]
    for kernel in ("forward", "backward"):
        of_kernel = {
            numbers: times[f"{numbers}, {rows} rows"].get(kernel, math.inf) for numbers in LAUNCHES
        }
        best[kernel] = min(of_kernel, key=of_kernel.__getitem__)
    return {"milliseconds": times, "best": best}


class TorchStack(nn.Module):
    """Two stacks of torch.nn.LSTM with a projection, which cannot clip, on padded batches."""

    def __init__(self, width: int, cells: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(width, cells, proj_size=width, batch_first=True) for _ in range(2 * layers)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        lengths, places = mask.sum(1, keepdim=True), torch.arange(x.shape[1], device=x.device)
        back = torch.where(mask, lengths - 1 - places, places)[:, :, None].expand_as(
            x
        )  # a row backwards, padding last
        streams, outputs = [x, x.gather(1, back)], []
        for number, layer in enumerate(self.layers):
            out, d = layer(streams[number % 2])[0], number % 2
            streams[d] = out + streams[d] if number > 1 else out
            if d:
                outputs.append(torch.cat([streams[0], streams[1].gather(1, back)], dim=2))
        return torch.stack(outputs)


def allennlp_stack(folder: Path, width: int, cells: int, layers: int) -> nn.Module:
    """AllenNLP's own ElmoLstm, from its three modules; the little that they import is written
    here.
    """

    def sort_batch(tensor: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        ordered, order = lengths.sort(0, descending=True)
        return tensor.index_select(0, order), ordered, order.argsort(), order

    known = {
        "": {},
        ".common": {},
        ".common.checks": {"ConfigurationError": ValueError},
        ".modules": {},
        ".nn": {},
        ".common.file_utils": {"cached_path": str},
        ".nn.initializers": {"block_orthogonal": lambda *_: None},
        ".nn.util": {
            "get_lengths_from_binary_sequence_mask": lambda mask: mask.sum(-1),
            "sort_batch_by_length": sort_batch,
            "get_dropout_mask": None,
        },
    }
    for name, values in known.items():
        sys.modules[f"allennlp{name}"] = module = ModuleType(f"allennlp{name}")
        vars(module).update(values)
    for name in pack_for_gpu.MODULES:
        spec = importlib.util.spec_from_file_location(
            f"allennlp.modules.{name}", folder / f"{name}.py"
        )
        assert spec is not None and spec.loader is not None
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    clips = {"memory_cell_clip_value": 3.0, "state_projection_clip_value": 3.0}
    return sys.modules["allennlp.modules.elmo_lstm"].ElmoLstm(width, width, cells, layers, **clips)


@torch.no_grad()
def embedding_rates(
    options: argparse.Namespace, bilm: BiLM, dtype: torch.dtype, text: list[list[str]]
) -> Figures:
    """Words per second from ids to all layers on the device, and from words to NumPy."""
    rows, lstm, words, figures = options.rows[-1] // 2, bilm.config.lstm, sum(map(len, text)), {}
    assert lstm is not None
    packed, to = prepack(bilm, dtype), device()
    batch = PackedBatch.to_embed(text, rows)
    ids, tokens = packed.token_encoder.ids(batch.words).to(to), batch.tokens.to(to)
    number = {word: index for index, word in enumerate(batch.words)}
    indices = [torch.tensor([number[word] for word in (BOS, *each, EOS)]) for each in text]
    groups = [indices[begin : begin + rows] for begin in range(0, len(text), rows)]
    padded = [
        nn.utils.rnn.pad_sequence(group, batch_first=True, padding_value=-1).to(to)
        for group in groups
    ]

    def run_padded(stack: nn.Module) -> None:
        vectors = packed.token_encoder(ids).to(dtype)
        for group in padded:
            stack(vectors[group.clamp(min=0)], group >= 0)

    def measure(name: str, make: Callable[[], Callable[[], object]]) -> None:
        try:
            figures[name] = words / median_seconds(make(), repeats=3)
        except Exception as error:  # a peer may not run in this number type, or not be there
            figures[name] = f"failed: {type(error).__name__}: {error}"

    sizes = (lstm.projection_dim, lstm.cell_dim, lstm.num_layers)
    embedder = Embedder(Pretrained(bilm), to.type, str(dtype).removeprefix("torch."))
    measure(
        "elmokit", lambda: lambda: packed.run(packed.token_encoder(ids), tokens, batch.text.packing)
    )
    measure("torch.nn.LSTM", lambda: partial(run_padded, TorchStack(*sizes).to(to, dtype)))
    measure(
        "AllenNLP",
        lambda: partial(
            run_padded, allennlp_stack(options.work / "allennlp", *sizes).to(to, dtype)
        ),
    )
    measure("elmokit, to NumPy", lambda: partial(embedder.embed, text))
    measure("elmokit, to texts", lambda: partial(embedder.encode, text))
    return {
        "words": words,
        "slots": tokens.shape[1],
        "padded_slots": sum(each.numel() for each in padded),
        **figures,
    }


@phase(45)
def embedding(options: argparse.Namespace) -> Figures:
    """elmokit in rows that are filled evenly, beside other LSTMs on as many rows, padded to the
    longest sentence.
    """
    use_tuning(options)
    lines = (
        line.split()
        for file in sorted((options.work / "heldout").iterdir())
        for line in read_lines(file)
    )
    text, figures = list(islice(filter(None, lines), options.sentences)), {}
    for size, config in {
        "recipe": options.config,
        "large": BiLMConfig.preset(options.large),
    }.items():
        bilm = BiLM(config).to(device())
        for dtype in (torch.float32, torch.bfloat16):
            figures[f"{size}, {dtype}"] = embedding_rates(options, bilm, dtype, text)
    return figures


@phase(60)
def steps(options: argparse.Namespace) -> Figures:
    """Times of training steps by rows, with what the profiler counts in a few of them; which rows
    to train with.
    """
    use_tuning(options)
    figures: Figures = {}
    for rows in options.rows:
        trainer = make_trainer(options, rows)
        for count in (10, options.steps):  # the first are a warm-up
            start = time.perf_counter()
            for _ in range(count):
                trainer.train_step()
            synchronize()
            seconds = time.perf_counter() - start
        figures[str(rows)] = {
            "seconds": seconds / count,
            "positions_per_second": count * rows * UNROLL / seconds,
        }
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with torch.profiler.profile(activities=kinds) as profile:  # of the most rows
        for _ in range(PROFILED):
            trainer.train_step()
        synchronize()
    events = profile.key_averages()
    by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print(events.table(sort_by=by, row_limit=40, max_name_column_width=60), flush=True)
    for name, parts in {
        "launches": ("LaunchKernel",),
        "waits": ("Synchronize", "_local_scalar_dense"),
    }.items():
        counts = [event.count for event in events if any(part in event.key for part in parts)]
        figures[f"{name}_per_step"] = sum(counts) / PROFILED
    chosen = [options.rows[0]]
    for more in options.rows[1:]:
        if figures[str(more)]["seconds"] > WORTH * figures[str(chosen[-1])]["seconds"]:
            break
        chosen.append(more)
    return {"rows": chosen, **figures}


# --- Training by the clock ------------------------------------------------------------------------


def bring_back(options: argparse.Namespace, trainer: Trainer, card: str) -> None:
    """Write the model in half precision to the output, as parts of a tar file."""
    directory = options.work / "model"
    tokenizer = (options.work / "tokenizer").read_text()
    model = replace(trainer.model, tokenizer=tokenizer, card=card)
    save(model, directory, overwrite=True, storage_dtype="float16")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(directory, arcname="model")
    whole = buffer.getvalue()
    for number, begin in enumerate(range(0, len(whole), PART_BYTES)):
        (options.output / f"model.tar.{number}").write_bytes(whole[begin : begin + PART_BYTES])


@phase(590)
def train(options: argparse.Namespace) -> Figures:
    """Train until `--seconds` are over; the rows grow, and the rate is constant at first and then
    falls to zero.
    """
    use_tuning(options)
    growth = found(options).get("steps", {}).get("rows") or options.rows
    heldout = sorted((options.work / "heldout").iterdir())
    trainer, positions, losses = make_trainer(options, growth[0]), 0, []
    begin = last_evaluation = time.perf_counter()

    def log(**values: Any) -> None:
        seconds = round(time.perf_counter() - begin, 1)
        entry = json.dumps(
            {"seconds": seconds, "step": trainer.step, "positions": positions, **values}
        )
        print(entry, flush=True)
        with (options.output / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write(entry + "\n")

    def evaluate(words: int | None) -> Figures:
        measured = measure_heldout(trainer.model, heldout, words).to_json()
        log(heldout=measured)
        read = (
            f"{positions:,} words and boundaries in {trainer.step:,} steps of up to "
            f"{growth[-1]} rows"
        )
        bring_back(options, trainer, f"# An English ELMo\n\nIt has read {read}.\n")
        return measured

    while (share := (time.perf_counter() - begin) / options.seconds) < 1:
        rows = growth[sum(share >= start for start in GROWTH[: len(growth)]) - 1]
        if rows != trainer.settings.batch_size:
            trainer = with_rows(options, trainer, rows)
        trainer.rate_factor = min(1.0, (trainer.step + 1) / WARM_UP, (1 - share) / (1 - CONSTANT))
        losses.append(trainer.train_step())
        positions += rows * UNROLL
        if trainer.step % LOG_EVERY == 0:
            loss, losses = torch.stack(losses).mean().item(), []
            log(loss=loss, rows=rows, rate=trainer.learning_rate)
            if not math.isfinite(loss):
                raise ValueError("the loss is not finite")
        if time.perf_counter() - last_evaluation > options.evaluate_every:
            evaluate(HELDOUT_WORDS)
            last_evaluation = time.perf_counter()
    seconds = time.perf_counter() - begin
    text = found(options)["unpack"]
    words = positions * text["words"] / (text["words"] + text["sentences"])
    return {
        "heldout": evaluate(None),
        "seconds": seconds,
        "steps": trainer.step,
        "rows": growth,
        "words": round(words),
        "words_per_second": words / seconds,
        "passes": words / text["words"],
        "learning_rate": options.learning_rate,
        "samples": options.samples,
        "unroll_steps": UNROLL,
        "seed": options.seed,
    }


# --- The command ----------------------------------------------------------------------------------


def write(options: argparse.Namespace, name: str, figures: Figures) -> None:
    if (
        result_files.COMMIT == "unknown" and (options.packed / "commit").exists()
    ):  # the tree is there without git
        result_files.COMMIT = (options.packed / "commit").read_text().strip()
    result_files.write_result(options.work / "gpu.json", figures, name)
    shutil.copy(options.work / "gpu.json", options.output)


def run_phase(options: argparse.Namespace, name: str) -> None:
    """In a process of its own: the phase, and its result."""
    os.setsid()  # so that what it starts ends with it
    start, (_, needs_gpu, function) = time.perf_counter(), PHASES[name]
    try:
        has_gpu = torch.cuda.is_available()
        figures = function(options) if has_gpu or not needs_gpu else {"skipped": "no CUDA device"}
    except Exception as error:
        traceback.print_exc()
        figures = {"failed": f"{type(error).__name__}: {error}"}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    write(
        options,
        name,
        {"gpu": gpu, "phase_seconds": round(time.perf_counter() - start, 1), **figures},
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "phases", nargs="+", choices=PHASES, metavar="PHASE", help=", ".join(PHASES)
    )
    parser.add_argument(
        "--packed", type=Path, required=True, help="a part that pack_for_gpu.py wrote"
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.json"))
    parser.add_argument(
        "--large", default="original", help="preset of a second model to embed with"
    )
    parser.add_argument(
        "--vocab", type=Path, default=ROOT / "src" / "elmokit" / "models" / "en-small" / "vocab.txt"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--learning-rate", type=float, default=0.006)
    parser.add_argument(
        "--sentences", type=int, default=2_600, help="of the held-out text, to embed"
    )
    parser.add_argument("--steps", type=int, default=100, help="training steps of a measurement")
    parser.add_argument("--seconds", type=float, default=390.0, help="of training")
    parser.add_argument("--evaluate-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.config = BiLMConfig.from_dict(json.loads(options.config.read_text(encoding="utf-8")))
    for directory in (options.work, options.output):
        directory.mkdir(parents=True, exist_ok=True)
    for name in options.phases:
        print(f"=== {name}", flush=True)
        process = multiprocessing.get_context("fork").Process(
            target=run_phase, args=(options, name)
        )
        process.start()
        process.join(PHASES[name][0])
        if process.is_alive():
            os.killpg(process.pid or 0, signal.SIGKILL)
            write(options, name, {"failed": f"it took more than {PHASES[name][0]} s"})
        elif process.exitcode:
            write(options, name, {"failed": f"it ended with status {process.exitcode}"})
        print(json.dumps({name: found(options)[name]}, indent=1)[:3000], flush=True)


if __name__ == "__main__":
    main()
