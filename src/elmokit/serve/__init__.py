"""`elmokit serve`: a model behind HTTP, and a page to look at it (extra `serve`)."""
