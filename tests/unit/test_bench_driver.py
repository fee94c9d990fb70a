"""Which of the driver's GPUs is meant; no GPU, no torch."""

import sys
from types import SimpleNamespace

import pytest

from llmtrace.bench.driver import driver_name, handle_of

UUID = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def torch_says(monkeypatch):
    """Let torch know these properties of its GPUs, in its own order."""

    def say(*properties):
        cuda = SimpleNamespace(get_device_properties=lambda i: SimpleNamespace(**properties[i]))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    return say


DRIVER = SimpleNamespace(
    nvmlDeviceGetHandleByIndex="by index {}".format, nvmlDeviceGetHandleByUUID="by uuid {}".format
)


@pytest.mark.parametrize("said", [UUID, f"GPU-{UUID}"])
def test_the_same_gpu_whichever_are_visible(torch_says, monkeypatch, said):
    """torch's second GPU is the driver's of that UUID, not its second one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    torch_says({"uuid": "other"}, {"uuid": said})
    assert handle_of(DRIVER, driver_name(1)) == f"by uuid GPU-{UUID}"


def test_by_its_place_where_torch_does_not_tell(torch_says, monkeypatch):
    """Only where both count the same GPUs; nothing is guessed."""
    torch_says({}, {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert handle_of(DRIVER, driver_name(1)) == "by index 1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert driver_name(1) is None
