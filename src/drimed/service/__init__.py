"""HTTP for live trials: it takes no decision of its own."""
