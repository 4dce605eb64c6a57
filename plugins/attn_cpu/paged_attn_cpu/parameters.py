"""What one kernel call is told: an int64 array, read by these indices. Addresses and strides are in it, data is not.

A native thread of another pool runs the kernels, so their arguments must be plain memory. Strides count elements.
"""

from __future__ import annotations

# the backend: fixed
KV_HEADS, GROUP, HEAD_DIM, WIDTH, BLOCK_SIZE = range(5)  # WIDTH: head_dim rounded up to whole vectors
# scratch: fixed until it grows
QUERIES, PARTIALS, PARTIAL_STATES, WORKSPACE, WORKSPACE_FLOATS, COUNTERS = range(5, 11)
# the plan: fixed for a step; HEADS: KV heads of a unit that a worker claims together
NUM_TOKENS, NUM_PREPARE, SLOTS, TABLES, TABLE_STRIDE, NUM_UNITS, UNITS, MEMBERS, NUM_MERGES, HEADS = range(11, 21)
PLAN_FIELDS = slice(NUM_TOKENS, HEADS + 1)
# the layer
Q, K, V, OUT, Q_STRIDE, K_STRIDE, V_STRIDE, OUT_STRIDE, CACHE, LSE, WINDOW, COS, SIN, HALF, CONSTANTS = range(21, 36)
OPERAND_FIELDS = slice(Q, OUT_STRIDE + 1)
ANGLE_FIELDS = slice(COS, HALF + 1)
MAX_WORKERS = 36  # for whom there is a workspace; more return at once
NUM_PARAMETERS = 37

SCALE, SOFTCAP = range(2)  # of the float32 array at CONSTANTS; softcap 0 = none

# counters: int64, all zero when a call starts; behind the merges' come those of the shared units
NEXT_PREPARE, PREPARED, NEXT_UNIT, WORKERS, FIRST_MERGE = range(5)

# one unit of attention work, int64 each (see planning.py)
ROW, TOKEN, COUNT, POSITION, BEGIN, END, PARTIAL, FIRST_PARTIAL, PARTS, MERGE, FIRST_MEMBER, SHARED = range(12)
UNIT_FIELDS = 12

SPLIT = 512  # keys per unit of a decoding sequence; a multiple of the softmax tile
