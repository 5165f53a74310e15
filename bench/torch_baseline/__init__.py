"""DDTree decoding as it is written in PyTorch today: the CPU speed baseline."""
