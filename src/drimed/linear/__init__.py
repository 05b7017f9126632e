"""Arrays only: ridge regression, confidence radii, designs and probability mass functions, over any batch."""
