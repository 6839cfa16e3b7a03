"""The paper's tables and figures, reproduced: its numbers, our trainings, and a verdict on each claim."""
