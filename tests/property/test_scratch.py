"""Buffers of the threads that run a plan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from weighbridge.tensors.scratch import scratch_buffers


def sizes(*asked: int) -> list[int]:
    with scratch_buffers(*asked) as buffers:
        return [buffer.size for buffer in buffers]


def test_the_first_buffer_of_a_thread_may_be_empty() -> None:
    """That of a tensor without elements."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(sizes, 0, 64, 0).result() == [0, 64, 0]
