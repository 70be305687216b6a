"""The weight formats of other systems, a file each: a table of names, pure functions, and the
loader.
"""
