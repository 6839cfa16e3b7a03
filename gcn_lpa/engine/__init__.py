"""The sparse matrix that everything walks, its kernels and its random bits."""
