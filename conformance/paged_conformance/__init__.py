"""The conformance suite of paged-core: one command, and a plugin of any kind gets a verdict its author can publish.

    pytest --pyargs paged_conformance.suite --paged-attn attn_mine

    plugin.py      options, fixtures and hooks for pytest
    candidate.py   Candidate: one plugin under judgement
    marks.py       requires, since, layer: which test judges whom
    judging.py     what a test item is to its candidates
    report.py      the JSON report, the table, the badge; verdict.py: what outcomes add up to
    suite/         the tests, one file a kind

Importing this package and `plugin` is cheap: they are loaded in every pytest run of the environment.
"""

__version__ = "0.1.0"
