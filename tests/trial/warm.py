"""Imported once by the process that other ones are forked from, so that each of them starts in milliseconds."""

from tests.trial import workers

workers.warm()
