"""Device, number type and seeds."""

import pytest
import torch

from elmokit.runtime import multiplies_bfloat16, pick_device, pick_dtype

CPU = torch.device("cpu")


def test_pick_device_takes_the_named_one_or_the_best() -> None:
    assert pick_device("cpu") == CPU
    assert pick_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_pick_device_refuses_a_missing_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU: use device='cpu'"):
        pick_device(name)


def test_pick_device_refuses_the_number_of_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"is_available": True, "device_count": 2, "current_device": 1}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert [str(pick_device(name)) for name in ("cuda", "cuda:0", "cuda:1")] == ["cuda:1", "cuda:0", "cuda:1"]
    with pytest.raises(ValueError, match=r"device 'cuda:7' was asked for, but the last one .* is cuda:1"):
        pick_device("cuda:7")


@pytest.mark.parametrize("name", ["foo", "", "cpu:x", "xpu", "hpu", "meta"])
def test_pick_device_refuses_what_pytorch_cannot_use(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be used .*: use cpu, cuda or cuda:N"):
        pick_device(name)


def test_pick_dtype_takes_names() -> None:
    assert pick_dtype(None, CPU) == pick_dtype("float32", CPU) == torch.float32
    assert pick_dtype("bfloat16", CPU) == torch.bfloat16
    with pytest.raises(ValueError, match="float32, bfloat16"):
        pick_dtype("float64", CPU)


@pytest.mark.parametrize("has_it", [False, True])
def test_auto_dtype_is_bfloat16_if_the_hardware_has_it(monkeypatch: pytest.MonkeyPatch, has_it: bool) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_it)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert multiplies_bfloat16(CPU) is has_it
    assert pick_dtype("auto", CPU) == (torch.bfloat16 if has_it else torch.float32)
