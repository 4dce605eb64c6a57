"""Short ways to drive one candidate: what the suite's tests of one kind share."""
