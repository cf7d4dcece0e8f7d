"""The nouns: frozen structures, checked once when they are made. Nothing here acts."""
