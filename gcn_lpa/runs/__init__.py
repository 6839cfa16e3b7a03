"""What `gcn-lpa train` does and leaves behind in a run folder."""
