"""Device operations behind one small interface, with a CPU and a CUDA implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class HostCopy(ABC):
    """Rows on their way to host memory."""

    @abstractmethod
    def wait(self) -> torch.Tensor:
        """The rows in host memory, owned by the caller. Blocks until the copy is done."""


class DeviceOps(ABC):
    """What the runner needs beyond plain tensor code."""

    @abstractmethod
    def snapshot(self, rows: torch.Tensor) -> HostCopy:
        """Start copying `rows` ([n, width], a view of a buffer that the next step reuses)."""

    @property
    @abstractmethod
    def frees_memory(self) -> bool:
        """Whether a sleeping worker gives device memory back at all."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Free device memory in bytes; 0 where nothing can be freed."""


class _Copied(HostCopy):
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> torch.Tensor:
        return self._tensor


class CpuOps(DeviceOps):
    """On CPU the "device" buffers are host memory that upstream reuses: copy at once."""

    def snapshot(self, rows: torch.Tensor) -> HostCopy:
        return _Copied(rows.detach().clone())

    @property
    def frees_memory(self) -> bool:
        return False

    def free_bytes(self) -> int:
        return 0


class _CudaCopy(HostCopy):
    def __init__(self, host: torch.Tensor, done: torch.cuda.Event) -> None:
        self._host = host
        self._done = done

    def wait(self) -> torch.Tensor:
        self._done.synchronize()
        return self._host


class CudaOps(DeviceOps):
    """A device clone ordered after the forward, then one copy to pinned memory on a side stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def snapshot(self, rows: torch.Tensor) -> HostCopy:
        # The clone runs on the compute stream, before the next step overwrites the buffer.
        clone = rows.detach().clone()
        host = torch.empty(clone.shape, dtype=clone.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            host.copy_(clone, non_blocking=True)
            # The allocator must not hand the clone's memory out while the copy reads it.
            clone.record_stream(self._stream)
            done.record(self._stream)
        return _CudaCopy(host, done)

    @property
    def frees_memory(self) -> bool:
        return True

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)


def ops_for(device: torch.device) -> DeviceOps:
    """The implementation for this device."""
    return CudaOps(device) if device.type == "cuda" else CpuOps()
