"""What results look like: one style for figures, one frame for self-contained pages."""
