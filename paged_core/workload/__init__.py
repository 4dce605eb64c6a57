"""Workloads: when requests arrive and how long they are, for whoever offers them: to a server, or to a simulation.

traces     what real services saw, from their published files
arrivals   arrival times drawn from a process
lengths    lengths of prompts and answers, drawn as the paper's traces have them, or from a file
plan       the requests of one rate, of all of these
"""
