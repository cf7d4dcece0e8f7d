"""Layer 4: what runs the work. Queue rows are written only through the desk."""
