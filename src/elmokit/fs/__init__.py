"""Reading and writing text files and directories."""
