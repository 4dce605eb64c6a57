"""Seams for tests of plugins and engine; nothing but tests imports this."""
