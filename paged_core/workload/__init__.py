"""Workloads: when requests arrive and how long they are, for whoever offers them: to a server, or to a simulation.

traces     what real services saw, from their published files
arrivals   arrival times drawn from a process
"""
