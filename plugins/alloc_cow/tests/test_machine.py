"""State machine: CowAllocator against a model of plain sets and lists, laws checked after every rule."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
SALTS = st.sampled_from([None, None, "s"])
PICK = st.integers(0, 1000)


class AllocatorMachine(RuleBasedStateMachine):
    """Tables as lists of block ids and nothing else; every count follows from them.

    The bench's memory proves besides that no sequence ever reads another's tokens, hit or shared or swapped.
    """

    make_bench = None

    @initialize(
        block_size=st.integers(1, 5), blocks=st.integers(1, 14), host=st.integers(0, 8), prefix_cache=st.booleans()
    )
    def begin(self, block_size, blocks, host, prefix_cache):
        self.world = self.make_bench(
            blocks, block_size, host, max_rows=8, max_len=40, prefix_cache=prefix_cache, hash_seed=1
        )
        self.alloc = self.world.alloc
        self.total, self.size = blocks, block_size
        self.tables = {}  # sequence -> device blocks
        self.swapped = {}  # sequence -> number of host blocks
        self.published = set()  # (salt, tokens) of every prefix that some publish could have entered

    # -- the model ------------------------------------------------------------------------------------------------

    def refs(self):
        """References of tables, and of pins, which `check` counts but does not explain."""
        return Counter(block for held in (*self.tables.values(), *self.alloc.sources.values()) for block in held)

    def model_free(self):
        return self.total - len(self.refs())

    def room(self):
        return len(self.world.free_rows) > 0

    def pick(self, mapping, number):
        return list(mapping)[number % len(mapping)]

    def need(self, seq, num):
        start, table = seq.num_computed, self.tables[seq]
        fresh = max(0, -(-(start + num) // self.size) - len(table))
        first = table[start // self.size] if start // self.size < len(table) else None
        return fresh + (first is not None and (self.refs()[first] > 1 or bool(self.alloc.pool.frozen[first])))

    # -- rules ----------------------------------------------------------------------------------------------------

    @precondition(room)
    @rule(tokens=TOKENS, salt=SALTS, cold=st.booleans())
    def open(self, tokens, salt, cold):
        seq = self.world.seq(tokens, salt=salt, cold=cold)
        group = self.world.group(seq)
        hits = self.world.open(seq)
        table = self.world.table(seq)
        self.tables[seq] = table
        assert hits <= len(tokens) - 1
        assert len(table) == -(-hits // self.size)
        assert not (cold and hits)
        beginnings = {(origin, known[:hits]) for origin, known in self.published}
        assert hits == 0 or (salt, tuple(tokens[:hits])) in beginnings
        assert self.world.intact(seq)
        assert group.gap == len(tokens) - hits

    @precondition(lambda self: self.tables)
    @rule(number=PICK, part=st.integers(1, 14))
    def compute(self, number, part):
        seq = self.pick(self.tables, number)
        num = min(part, seq.gap)
        if num == 0:
            return
        need, free, before = self.need(seq, num), self.model_free(), list(self.tables[seq])
        start = seq.num_computed
        copies = self.alloc.grow(seq, num)
        assert (copies is None) == (need > free)
        if copies is None:
            assert self.world.table(seq) == before
            return
        self.world.copy(copies)
        table = self.world.table(seq)
        for i, block in enumerate(before):
            copied = bool(copies) and i == start // self.size
            assert table[i] == (copies[0].dst if copied else block)
        self.tables[seq] = table
        assert self.model_free() == free - need
        self.alloc.check()
        self.world.write(seq, start, num)
        end = seq.num_computed // self.size * self.size
        salt, tokens = seq.request.cache_salt, seq.token_ids.tolist()
        self.published |= {(salt, tuple(tokens[:stop])) for stop in range(self.size, end + 1, self.size)}

    @precondition(lambda self: self.tables)
    @rule(number=PICK, token=st.integers(0, 1))
    def append(self, number, token):
        seq = self.pick(self.tables, number)
        if seq.gap == 0 and seq.num_tokens < 40:
            self.world.append(seq, token)

    @precondition(lambda self: self.tables)
    @rule(number=PICK)
    def decode_many(self, number):
        import numpy as np

        seqs = [seq for seq in self.tables if seq.gap == 1][: number % 5 + 1]
        rows = np.array([seq.row for seq in seqs], dtype=np.int32)
        group = self.world.group(*seqs) if seqs else None
        if group is None:
            return
        scratch = self.alloc.scratch([group], rows)
        assert not self.alloc.sources
        free, counted = self.model_free(), scratch.need_decodes()
        accepted = scratch.take_decodes()
        copies = self.alloc.grow_decodes(seqs, rows)
        assert copies is not None or not accepted
        if copies is None:
            assert self.model_free() == free
            return
        self.world.copy(copies)
        for seq in seqs:
            self.tables[seq] = self.world.table(seq)
        assert free - self.model_free() <= counted
        self.alloc.check()
        for seq in seqs:
            self.world.write(seq, seq.num_computed, 1)
            end = seq.num_computed // self.size * self.size
            tokens = seq.token_ids.tolist()
            self.published |= {
                (seq.request.cache_salt, tuple(tokens[:stop])) for stop in range(self.size, end + 1, self.size)
            }

    @precondition(lambda self: self.tables and self.room())
    @rule(number=PICK)
    def fork(self, number):
        parent = self.pick(self.tables, number)
        if parent.num_computed == 0:
            return
        free = self.model_free()
        child = self.world.fork(parent)
        self.tables[child] = self.world.table(child)
        covered = -(-parent.num_computed // self.size)
        assert self.tables[child] == self.tables[parent][:covered]
        assert self.model_free() == free

    @precondition(lambda self: self.tables or self.swapped)
    @rule(number=PICK)
    def free(self, number):
        seq = self.pick({**self.tables, **self.swapped}, number)
        self.world.free_seq(seq)
        self.tables.pop(seq, None)
        self.swapped.pop(seq, None)

    @precondition(lambda self: self.tables)
    @rule(number=PICK, keep=st.integers(0, 14))
    def shrink(self, number, keep):
        seq = self.pick(self.tables, number)
        keep = min(keep, seq.num_computed)
        self.world.rows.num_computed[seq.row] = keep
        self.world.rows.num_tokens[seq.row] = max(1, keep)
        self.alloc.hit_tokens[seq.row] = 0  # its tokens may change now
        self.alloc.shrink(seq, keep)
        self.tables[seq] = self.tables[seq][: -(-keep // self.size)]

    @precondition(lambda self: self.tables)
    @rule(number=PICK, count=st.integers(1, 3))
    def swap_out(self, number, count):
        first = number % len(self.tables)
        seqs = [seq for seq in list(self.tables)[first : first + count] if self.tables[seq]]
        if not seqs:
            return
        distinct = {block for seq in seqs for block in self.tables[seq]}
        pairs = self.world.swap(self.world.group(*seqs), "out")
        if pairs is None:
            return
        assert {src for src, _ in pairs} == distinct
        assert len(pairs) == len(distinct) == len({dst for _, dst in pairs})
        for seq in seqs:
            del self.tables[seq]
            self.swapped[seq] = tuple(seqs)

    @precondition(lambda self: self.swapped)
    @rule(number=PICK)
    def swap_in(self, number):
        gang = [seq for seq in self.pick_gang(number) if seq in self.swapped]
        free = self.model_free()
        pairs = self.world.swap(self.world.group(*gang), "in")
        if pairs is None:
            return
        for seq in gang:
            del self.swapped[seq]
            self.tables[seq] = self.world.table(seq)
        assert self.model_free() == free - len(pairs)

    def pick_gang(self, number):
        return self.swapped[self.pick(self.swapped, number)]

    # -- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def laws(self):
        if not hasattr(self, "alloc"):
            return
        self.alloc.check()
        stats, refs = self.alloc.stats(), self.refs()
        assert stats.free == self.model_free()
        assert stats.shared == sum(count > 1 for count in refs.values())
        for seq, table in self.tables.items():
            assert self.world.table(seq) == table
            assert self.world.intact(seq)

    def teardown(self):
        if hasattr(self, "alloc"):
            for seq in [*self.tables, *self.swapped]:
                self.world.free_seq(seq)
            self.alloc.check()
            assert self.alloc.stats().free == self.total
            assert self.alloc.stats().host_free == self.alloc.stats().host_total


def test_the_allocator_agrees_with_its_model(bench):
    machine = type("Machine", (AllocatorMachine,), {"make_bench": bench})
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
