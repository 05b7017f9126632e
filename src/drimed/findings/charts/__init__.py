"""Charts as SVG; every number in a picture is also in the table beside it."""
