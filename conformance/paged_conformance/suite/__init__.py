"""The tests. Run them with `pytest --pyargs paged_conformance.suite`; plugin authors may also star-import a file."""
