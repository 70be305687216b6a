"""Files and directories: streamed reading, atomic writing, locks, and the formats that several
packages read.
"""
