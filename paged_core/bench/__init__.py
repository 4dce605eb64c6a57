"""Benchmarks: real runs with their conditions, and the floors that the machine's own peaks set.

Measurement  seconds (or ratios) of several rounds, with their median
Table        columns with a format each, rows of plain values
Report       the conditions and the tables of one command, as text or JSON
"""

from paged_core.bench.conditions import conditions
from paged_core.bench.report import Column, Report, Table
from paged_core.bench.timing import Measurement, alternate, measure, ratio

__all__ = ["Column", "Measurement", "Report", "Table", "alternate", "conditions", "measure", "ratio"]
