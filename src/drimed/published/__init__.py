"""The paper's algorithms letter by letter, with their departures from their own problem statement.

Each quirk carries a comment with its I-number; docs/paper.md explains them. Nothing outside this folder has them.
"""
