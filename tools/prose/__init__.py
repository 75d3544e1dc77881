"""A prose lint for documents: patterns that a professional editor would rewrite."""
