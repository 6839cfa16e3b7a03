"""Questions to a trained model: why, what if, how sure, which labels and edges look wrong."""
