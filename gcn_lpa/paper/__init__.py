"""The paper's tables and figures, made again: its numbers, our runs, and what became of each claim."""
