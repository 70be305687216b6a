"""Device, number type and seeds."""

import pytest
import torch

from elmokit.runtime import multiplies_bfloat16, pick_device, pick_dtype

CPU = torch.device("cpu")


def test_pick_device_takes_the_named_one_or_the_best() -> None:
    assert pick_device("cpu") == CPU
    assert pick_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["foo", "", "cpu:x", "xpu", "cuda:77"])
def test_pick_device_refuses_what_pytorch_cannot_use(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be used .*: use cpu, cuda or cuda:N"):
        pick_device(name)


def test_pick_dtype_takes_names() -> None:
    assert pick_dtype(None, CPU) == pick_dtype("float32", CPU) == torch.float32
    assert pick_dtype("bfloat16", CPU) == torch.bfloat16
    with pytest.raises(ValueError, match="float32, bfloat16"):
        pick_dtype("float64", CPU)


@pytest.mark.parametrize("has_it", [False, True])
def test_auto_dtype_is_bfloat16_if_the_hardware_has_it(
    monkeypatch: pytest.MonkeyPatch, has_it: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_it)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert multiplies_bfloat16(CPU) is has_it
    assert pick_dtype("auto", CPU) == (torch.bfloat16 if has_it else torch.float32)
