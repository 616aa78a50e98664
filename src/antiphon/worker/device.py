"""Device operations behind one small interface, with a CPU and a CUDA implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch


class HostCopy(ABC):
    """Rows on their way to host memory."""

    @abstractmethod
    def wait(self) -> torch.Tensor:
        """The rows in host memory, owned by the caller. Blocks until the copy is done."""


class DeviceOps(ABC):
    """What the runner needs beyond plain tensor code, on `device`."""

    device: torch.device

    @abstractmethod
    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of host memory on the device, for what is enqueued next. Waits for nothing.

        It may be the tensor itself, which is not to be written to then.
        """

    @abstractmethod
    def snapshot(self, rows: torch.Tensor) -> HostCopy:
        """Start copying `rows` ([n, width], a view of a buffer that the next step reuses)."""

    @abstractmethod
    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        """Start copying a tensor that nobody writes to any more."""

    @abstractmethod
    def take_blocks(self, blocks: torch.Tensor, ids: Sequence[int]) -> list[torch.Tensor]:
        """Blocks of a cache [num_blocks, …] by id, in order: pieces [n, elements of a block].

        They are on the cache's device. Whether they view the cache or are copies is not said.
        """

    @abstractmethod
    def read_blocks(self, blocks: torch.Tensor, ids: Sequence[int], settled: int) -> list[HostCopy]:
        """Start copying blocks as `take_blocks` gives them to the host.

        Of the first `settled` of them the copies may view the cache: the caller sees to it that
        nobody writes to those until it has let go of them.
        """

    @abstractmethod
    def write_blocks(
        self, blocks: torch.Tensor, ids: Sequence[int], pieces: Sequence[torch.Tensor]
    ) -> None:
        """Write pieces [n, elements of a block] from host memory to these blocks, in order.

        What is enqueued after it sees them; the pieces may be let go of at once.
        """

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

    device = torch.device("cpu")

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def snapshot(self, rows: torch.Tensor) -> HostCopy:
        return _Copied(rows.detach().clone())

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        return _Copied(tensor)

    def take_blocks(self, blocks: torch.Tensor, ids: Sequence[int]) -> list[torch.Tensor]:
        # A view wherever a block lies in one piece, as in upstream's only layout for CPU.
        return [blocks[start:stop].flatten(1) for start, stop in runs(ids)]

    def read_blocks(self, blocks: torch.Tensor, ids: Sequence[int], settled: int) -> list[HostCopy]:
        views = self.take_blocks(blocks, ids[:settled])
        copies = [piece.clone() for piece in self.take_blocks(blocks, ids[settled:])]
        return [_Copied(piece) for piece in (*views, *copies)]

    def write_blocks(
        self, blocks: torch.Tensor, ids: Sequence[int], pieces: Sequence[torch.Tensor]
    ) -> None:
        done = 0
        for piece in pieces:
            row = 0
            for start, stop in runs(ids[done : done + len(piece)]):
                target = blocks[start:stop]
                target.copy_(piece[row : row + stop - start].reshape(target.shape))
                row += stop - start
            done += len(piece)

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
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        # Pinned, or the thread would wait for everything that is enqueued already.
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def snapshot(self, rows: torch.Tensor) -> HostCopy:
        # The clone runs on the compute stream, before the next step overwrites the buffer.
        return self.to_host(rows.detach().clone())

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
            # The allocator must not hand the tensor's memory out while the copy reads it.
            tensor.record_stream(self._stream)
            done.record(self._stream)
        return _CudaCopy(host, done)

    def take_blocks(self, blocks: torch.Tensor, ids: Sequence[int]) -> list[torch.Tensor]:
        return [blocks.index_select(0, self._indices(ids)).flatten(1)]

    def read_blocks(self, blocks: torch.Tensor, ids: Sequence[int], settled: int) -> list[HostCopy]:
        return [self.to_host(piece) for piece in self.take_blocks(blocks, ids)]

    def write_blocks(
        self, blocks: torch.Tensor, ids: Sequence[int], pieces: Sequence[torch.Tensor]
    ) -> None:
        # Pageable memory: the copy has read it when it returns.
        rows = torch.cat([piece.to(self.device) for piece in pieces])
        blocks.index_copy_(0, self._indices(ids), rows.view(-1, *blocks.shape[1:]))

    def _indices(self, ids: Sequence[int]) -> torch.Tensor:
        return self.to_device(torch.tensor(ids))

    @property
    def frees_memory(self) -> bool:
        return True

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free)


def ops_for(device: torch.device) -> DeviceOps:
    """The implementation for this device."""
    return CudaOps(device) if device.type == "cuda" else CpuOps()


def runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of ids that follow one another, in order."""
    first = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            yield ids[first], ids[end - 1] + 1
            first = end
