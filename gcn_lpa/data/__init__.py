"""From files to a `Graph`: tables of one's own, and the named data sets."""
