"""Parts for paged allocators: tables, copy-on-write, forks, the host tier, the block budget.

`allocator.PagedAllocator` leaves open how blocks are found again by content: a plugin brings its pool and index.
"""
