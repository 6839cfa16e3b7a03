"""A text file as one table, where the package reads it in pieces."""

from gcn_lpa.data.table import delimited_pieces, joined, with_header


def read_delimited(path, roles, *, header=True, **form):
    """Without a header the columns are named by `roles`, then by number; blank rows are left out."""
    pieces = delimited_pieces(path, roles, **form)
    return joined(with_header(pieces) if header else pieces)
