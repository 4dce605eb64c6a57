"""Tools: how a conversation with tools is written into a prompt, constrained, and read out of an answer."""
