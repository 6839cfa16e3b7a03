"""From files to a `Graph`: your tables, and the named data sets."""
