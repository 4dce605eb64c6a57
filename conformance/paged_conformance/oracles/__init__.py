"""What the suite compares plugins with: plain models, one file a kind, slow and obvious on purpose."""
