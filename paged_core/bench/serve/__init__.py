"""`bench serve`: offers load to a server that speaks OpenAI's API, ours or another, and measures what a caller sees.

plan      the requests of one rate: arrivals and lengths, drawn or from a trace
prompts   text of the lengths that were asked for
client    one request over HTTP, events and all: what came, and when
offer     sends a plan's requests when they are due, whatever became of those before: an open loop
figures   the formulas, percentiles, throughput and goodput of what was recorded
sweep     all of it for every rate; tables and curves show it
"""
