"""ELMo inside other libraries: each module needs the library that it is named after, which is an
extra of elmokit.
"""
