"""Graphs larger than one machine: rows in parts, one process each, under torchrun."""
