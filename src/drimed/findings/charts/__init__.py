"""Charts as SVG, drawn on the server: no numbers leave it that are not also in the table beside the picture."""
