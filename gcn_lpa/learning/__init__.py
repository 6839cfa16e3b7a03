"""Folds, members, votes: how many models learn and predict together."""
