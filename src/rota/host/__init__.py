"""Layer 1: what the operating system gives. Import what you need from the files; the minder must stay small."""
