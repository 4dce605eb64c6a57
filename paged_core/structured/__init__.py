"""Structured output: grammars compiled in a process of their own, and the masks they put over the logits."""
