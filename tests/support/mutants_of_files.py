"""Tiny models in every format, and ways to damage them."""

import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path

import h5py
import numpy as np
import torch
from allennlp_state import allennlp_state_dict
from efml_files import write_efml
from tf_bundle import entry, variable_name, write_bundle, write_index
from tiny_model import tiny_model

from elmokit.checkpoints.bilm_hdf5 import arrays_of, write_bilm_hdf5
from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.nn.bilm import BiLMState

ABSURD = (
    0,
    -1,
    3,
    1 << 20,
    10**9,
    1 << 80,
    1.5,
    float("inf"),
    float("nan"),
    "x",
    None,
    True,
    [],
    {},
    [1] * 9,
)

Mutation = Callable[[Path, random.Random], str]
"""Damages a file, or leaves it alone where it is of another kind, and tells what it did ("" for
nothing).
"""


# --- Tiny models, one in each format --------------------------------------------------------------


def tiny() -> Pretrained:
    """With all that a directory can hold."""
    mix = MixWeights((0.5, 0.0, -0.5), gamma=1.5)
    model = tiny_model(["naïve", "the"], card="# Tiny\n", tokenizer="english-1", mix=mix)
    warm = BiLMState(torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 32))
    return replace(model, state_policy="warm", warm_state=warm)


def write_native(folder: Path) -> Path:
    save(tiny(), folder / "model")
    return folder / "model"


def write_dictionaries(folder: Path) -> Path:
    save(load(write_efml(folder / "old")), folder / "model")
    return folder / "model"


def write_hdf5(folder: Path) -> Path:
    folder.mkdir()
    write_bilm_hdf5(tiny().bilm, folder)
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    return folder


def write_tensorflow(folder: Path) -> Path:
    write_hdf5(folder)
    (folder / "weights.hdf5").unlink()
    arrays = {variable_name(name): array for name, array in arrays_of(tiny().bilm).items()}
    arrays |= {"lm/softmax/W": np.ones((3, 16), np.float32), "lm/softmax/b": np.ones(3, np.float32)}
    write_bundle(folder / "model.ckpt-1", arrays)
    return folder


def write_zip(folder: Path) -> Path:
    unpacked = write_hdf5(folder / "unpacked") if folder.mkdir() is None else folder
    (unpacked / "meta.json").write_text('{"language": "nob"}')
    with zipfile.ZipFile(folder / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(unpacked.iterdir()):
            archive.writestr(
                "model.hdf5" if file.suffix == ".hdf5" else file.name, file.read_bytes()
            )
    shutil.rmtree(unpacked)
    return folder / "model.zip"


def write_tar(folder: Path) -> Path:
    unpacked = write_hdf5(folder / "unpacked") if folder.mkdir() is None else folder
    with tarfile.open(folder / "model.tar.gz", "w:gz") as archive:
        archive.add(unpacked, "elmo")
    shutil.rmtree(unpacked)
    return folder / "model.tar.gz"


def write_allennlp(folder: Path) -> Path:
    weights = write_hdf5(folder) / "weights.hdf5"
    torch.save(allennlp_state_dict(weights, layers=2, highways=1), folder / "weights.th")
    for name in ("weights.hdf5", "vocab.txt", "options.json"):
        (folder / name).unlink()
    return folder


WRITERS = {
    "native": write_native,
    "hdf5": write_hdf5,
    "tensorflow": write_tensorflow,
    "zip": write_zip,
    "tar": write_tar,
    "allennlp": write_allennlp,
    "native with dictionaries": write_dictionaries,
    "elmoformanylangs": write_efml,
    "elmoformanylangs-2018": lambda folder: write_efml(
        folder, _use_new_zipfile_serialization=False
    ),
}


# --- Damage ---------------------------------------------------------------------------------------


def truncate(file: Path, draw: random.Random) -> str:
    content = file.read_bytes()
    length = draw.randrange(len(content))
    file.write_bytes(content[:length])
    return f"cut to {length} of {len(content)} bytes"


def flip_bits(file: Path, draw: random.Random) -> str:
    content = bytearray(file.read_bytes())
    # Where files say what they hold: at their ends.
    reach = draw.choice([64, 1024, len(content)])
    places = [
        draw.randrange(min(reach, len(content))) * draw.choice([1, -1])
        for _ in range(draw.randint(1, 4))
    ]
    for place in places:
        content[place] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return f"bits flipped at {places}"


def overwrite(file: Path, draw: random.Random) -> str:
    content = bytearray(file.read_bytes())
    reach = draw.choice([256, 4096, len(content)])
    place = draw.randrange(min(reach, len(content)))
    size = draw.choice([1, 4, 8, 64])
    content[place : place + size] = draw.choice([b"\xff", b"\0", b"\x7f"]) * size
    file.write_bytes(content)
    return f"{size} bytes overwritten at {place}"


def remove(file: Path, draw: random.Random) -> str:
    file.unlink()
    return "removed"


def _places(values: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    items = (
        values.items()
        if isinstance(values, dict)
        else enumerate(values)
        if isinstance(values, list)
        else ()
    )
    for key, value in items:
        yield from _places(value, (*path, key))


def change_json(file: Path, draw: random.Random) -> str:
    if file.suffix != ".json":
        return ""
    values = json.loads(file.read_text())
    *path, last = draw.choice(list(_places(values)))
    owner = reduce(lambda part, key: part[key], path, values)
    if draw.random() < 0.25:
        del owner[last]
    else:
        owner[last] = draw.choice(ABSURD)
    file.write_text(json.dumps(values))
    return f"{path} {last} is now {owner.get(last, 'gone') if isinstance(owner, dict) else owner}"


def enlarge_numbers(file: Path) -> Iterator[str]:
    """Each number of a JSON file in turn becomes a thousand million."""
    whole = file.read_text()
    for *path, last in _places(json.loads(whole)):
        values = json.loads(whole)
        owner = reduce(lambda part, key: part[key], path, values)
        if isinstance(owner[last], (int, float)) and not isinstance(owner[last], bool):
            owner[last] = 10**9
            file.write_text(json.dumps(values))
            yield f"{file.name}: {path} {last} is now 10^9"


def change_hdf5(file: Path, draw: random.Random) -> str:
    if file.suffix != ".hdf5":
        return ""
    with h5py.File(file, "r+") as weights:
        names: list[str] = []
        weights.visititems(lambda name, item: names.append(name))
        name = draw.choice(names)
        shape = getattr(weights[name], "shape", (2,))
        del weights[name]
        kind = draw.choice(
            ["gone", "absurd", "text", "group", "link", "outside", "other shape", "filled"]
        )
        if kind == "absurd":  # declared, and never stored
            weights.create_dataset(name, (1 << 40, *shape[1:]), "f4", chunks=(1, *shape[1:]))
        elif (
            kind == "filled"
        ):  # declared in the shape that is asked for, in one chunk of another size
            weights.create_dataset(
                name,
                shape,
                "f4",
                maxshape=(None,) * len(shape),
                chunks=(1 << 20,) * len(shape[:1]) + shape[1:],
            )
        elif kind == "text":
            weights[name] = "text"
        elif kind == "group":
            weights.create_group(name)
        elif kind == "link":
            weights[name] = h5py.SoftLink("/CNN")
        elif kind == "outside":
            weights.create_dataset(
                name, shape, "f4", external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)]
            )
        elif kind == "other shape":
            weights[name] = np.zeros((2, *shape), np.float32)
    return f"{name} {kind}"


def change_safetensors(file: Path, draw: random.Random) -> str:
    if file.suffix != ".safetensors":
        return ""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = draw.choice(sorted(set(header) - {"__metadata__"}))
    key = draw.choice(["dtype", "shape", "data_offsets"])
    header[name][key] = draw.choice([[1 << 40], [0, 1 << 60], [1 << 62] * 4, "F64", "I8", [], [-1]])
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])
    return f"{name}: {key} is now {header[name][key]}"


def change_index(file: Path, draw: random.Random) -> str:
    """Entries that cannot be, under good checksums."""
    if file.suffix != ".index":
        return ""
    names = ["lm/char_embed", "lm/CNN_proj/b_proj", "lm/softmax/W", "lm/stranger"]
    entries = {
        name: entry(
            draw.choice(["float32", "float64", "int64", "bool"]),
            draw.choice([(), (4,), (261, 4), (1 << 40, 1 << 40), (1 << 62,), (0,), (1,) * 20]),
            draw.choice([0, 4, 1 << 40, (1 << 64) - 1]),
            draw.choice([0, 4, 261 * 16, 1 << 42, (1 << 64) - 1]),
        )
        for name in draw.sample(names, draw.randint(0, 4))
    }
    write_index(file.with_suffix(""), entries)
    return f"entries for {', '.join(entries)}"


def change_weights(file: Path, draw: random.Random) -> str:
    """Tensors that are none, of other kinds and shapes, or larger than what is stored of them."""
    if file.suffix not in (".pkl", ".th"):
        return ""
    tensors = torch.load(file, weights_only=True)
    name = draw.choice(sorted(tensors))
    shape = tensors[name].shape
    values = {
        "gone": None,
        "text": "text",
        "integers": torch.ones(shape, dtype=torch.int64),
        "other shape": torch.ones(2, *shape),
        "repeated": torch.ones(1).expand(shape),
        "absurd": torch.ones(1).expand(1 << 40, *shape),
        "sparse": torch.ones(shape).to_sparse(),
        "without content": torch.ones(shape, device="meta"),
        "complex": torch.ones(shape, dtype=torch.complex64),
        "half": torch.ones(shape, dtype=torch.float16),
    }
    kind = draw.choice(sorted(values))
    tensors[name] = values[kind]
    if kind == "gone":
        del tensors[name]
    torch.save(draw.choice([tensors, tensors, list(tensors)]), file)
    return f"{name} {kind}"


def change_dictionary(file: Path, draw: random.Random) -> str:
    if file.suffix != ".dic":
        return ""
    lines = file.read_text().splitlines()
    number = draw.randrange(len(lines))
    lines[number] = draw.choice(
        ["", "x", "x\t", "x\t-1", "x\t0", f"x\t{10**12}", "\t3", "x\t\u0664", "x\t1.5"]
    )
    file.write_text("\n".join(lines))
    return f"line {number} is now {lines[number]!r}"


ANYWHERE = (truncate, flip_bits, overwrite)
MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "native": (*ANYWHERE, remove, change_json, change_json, change_safetensors),
    "native with dictionaries": (*ANYWHERE, remove, change_json, change_json, change_safetensors),
    "hdf5": (*ANYWHERE, remove, change_json, change_hdf5, change_hdf5),
    "tensorflow": (*ANYWHERE, remove, change_json, change_index, change_index),
    "zip": ANYWHERE,
    "tar": ANYWHERE,
    "allennlp": (*ANYWHERE, change_weights, change_weights),
    "elmoformanylangs": (
        *ANYWHERE,
        remove,
        change_json,
        change_dictionary,
        change_weights,
        change_weights,
    ),
    "elmoformanylangs-2018": (*ANYWHERE, flip_bits, overwrite),
}


def mutate(model: Path, format: str, draw: random.Random) -> str:
    """Damage one file of a model; returns what was done."""
    while True:
        file = draw.choice(sorted(model.iterdir()) if model.is_dir() else [model])
        done = draw.choice(MUTATIONS[format])(file, draw)
        if done:
            return f"{file.name}: {done}"
