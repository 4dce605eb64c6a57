"""Scratch never moves under captured work; addresses of a pool reach the device once."""

from __future__ import annotations

import torch

from paged_core.device.scratch import Addresses, Scratch

CPU = torch.device("cpu")


def test_memory_that_suffices_stays_where_it_is():
    scratch = Scratch(torch.float32, CPU, 100)
    first = scratch.take(1)
    assert scratch.take(100).data_ptr() == first.data_ptr()
    assert scratch.take(0).dtype == torch.float32


def test_memory_that_was_outgrown_is_kept():
    scratch = Scratch(torch.float32, CPU, 4)
    small = scratch.take(4).fill_(7.0)
    address = small.data_ptr()
    del small
    large = scratch.take(5)
    assert len(large) == 8, "it doubles"
    assert large.data_ptr() != address
    assert any(kept.data_ptr() == address for kept in scratch._outgrown), "captured work may still write there"
    assert scratch.take(3).data_ptr() == large.data_ptr()


def test_addresses_are_those_of_the_tensors_in_order():
    tensors = [torch.zeros(n) for n in (3, 1, 2)]
    addresses = Addresses(CPU)
    assert addresses.of(tensors).tolist() == [tensor.data_ptr() for tensor in tensors]
    assert addresses.of(tensors[::-1]).tolist() == [tensor.data_ptr() for tensor in tensors[::-1]]


def test_a_pool_that_is_known_is_not_sent_again():
    pools = [[torch.zeros(1)] for _ in range(40)]
    addresses = Addresses(CPU)
    first = addresses.of(pools[0])
    assert addresses.of(pools[0]) is first
    for pool in pools:
        assert addresses.of(pool).tolist() == [pool[0].data_ptr()]
    assert len(addresses._known) <= 16, "a process that makes pools all day does not grow"
