"""Foreign weight formats, one file each: a table of names plus pure functions."""
