"""The page about a run: what it holds, where its nodes are drawn, how it is written and served."""
