"""One function says which devices are managed as GPUs."""

from __future__ import annotations

import subprocess
import sys

import torch
from memtide._util import devices
from recording_gpu import RecordingGpu

_DL_EXTENSION = 12  # DLPack's number of what torch calls PrivateUse1.


def test_cuda_is_managed_and_other_devices_are_not() -> None:
    assert devices.gpu_module("cuda") is torch.cuda
    assert [devices.gpu_module(name) for name in ("cpu", "meta", "xpu")] == [None] * 3


def test_a_device_that_is_registered_is_managed_until_that_ends() -> None:
    gpu = RecordingGpu()
    end = devices.register("extension", _DL_EXTENSION, gpu)
    assert devices.gpu_module("extension") is gpu
    assert devices.device_name((_DL_EXTENSION, 3)) == "extension:3"
    inner = devices.register("extension", _DL_EXTENSION, RecordingGpu())
    inner()
    assert devices.gpu_module("extension") is gpu
    end()
    assert devices.gpu_module("extension") is None


def test_devices_are_named_as_torch_names_them() -> None:
    assert devices.device_name((1, 0)) == "cpu"
    assert devices.device_name((2, 1)) == "cuda:1"
    assert torch.device(devices.device_name((2, 1))).index == 1


def test_to_ask_imports_no_torch() -> None:
    code = "from memtide._util import devices; import sys\n"
    code += "assert devices.gpu_module('cuda') is None and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=True)
