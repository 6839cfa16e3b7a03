"""Every method there is, each with the same interface as GCN-LPA."""
