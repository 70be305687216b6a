"""Compile the Triton LSTM for Hopper (sm_90) where there is no GPU, and print what the kernels use,
as JSON.

Run as a program: where Triton interprets kernels, it cannot compile them.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import torch

from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM

HIDDEN, WIDTH = 1024, 256  # of the model en-small
WIDE = ("h", "c", "start_h", "start_c", "outputs", "cells", "grad_outputs", "grad_h", "grad_c")
TYPES = {"index": "*i64", "starts": "*i32", "resets": "*u8", "steps": "i32", "cell_clip": "fp32"}
TYPES |= {"projection_clip": "fp32", **dict.fromkeys(WIDE, "*fp32")}


def compiled(kernel: object, name: str, absent: tuple[str, ...]) -> dict[str, int]:
    """Compile a kernel in bfloat16 with its own launch, without the tensors that are absent."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from elmokit.ops import triton as launch

    rows, units, warps, stages = launch.LAUNCHES[name]
    constants = {
        "HIDDEN": HIDDEN,
        "WIDTH": WIDTH,
        "ROWS": rows,
        "UNITS": units,
        "STAGES": stages,
    }
    constants |= dict.fromkeys(absent)
    arguments = kernel.arg_names
    signature = {
        each: "constexpr" if each in constants else TYPES.get(each, "*bf16") for each in arguments
    }
    aligned = [number for number, each in enumerate(arguments) if signature[each].startswith("*")]
    source = ASTSource(
        kernel,
        signature,
        {(arguments.index(each),): value for each, value in constants.items() if each in arguments},
        {(number,): [["tt.divisibility", 16]] for number in aligned},
    )
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    cubin = Path(sys.argv[1]) / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run(
        [cuobjdump, "-res-usage", cubin], check=True, capture_output=True, text=True
    ).stdout
    used = {
        what.lower(): int(number) for what, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)
    }
    estimate = launch._shared_bytes(launch.LAUNCHES[name], WIDTH, torch.bfloat16)
    return used | {"shared": binary.metadata.shared, "estimate": estimate}


def main() -> None:
    BiLM(BiLMConfig.preset("tiny"))(torch.randint(1, 200, (2, 3, 10))).layers[0].sum().backward()
    assert "triton" not in sys.modules, "the model on a CPU has imported Triton"
    from elmokit.ops.triton.lstm import backward_kernel, forward_kernel

    absent = ("gates", "hidden", "cells", "previous_h", "resets")
    report = {
        "training": compiled(forward_kernel, "forward", ("index",)),
        "first layer": compiled(forward_kernel, "forward", absent),
        "backward": compiled(backward_kernel, "backward", ()),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
