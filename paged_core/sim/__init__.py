"""The simulator: the real engine on a virtual clock, around a model that is not there."""
