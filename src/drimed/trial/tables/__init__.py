"""One reader of tables for every place that takes one, and one writer: bytes -> text -> rows -> values."""
